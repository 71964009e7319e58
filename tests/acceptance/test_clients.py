"""The documented clients against the shop: through a line that breaks, and with workers that die."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

from tests.acceptance.conftest import RunningShop
from tests.acceptance.documented_clients import Place, place_order
from tests.acceptance.lines import BrokenLine
from tests.servers import DEADLINE, eventually

__all__ = ["place_order"]


def test_it_retries_until_there_is_an_answer(shop: RunningShop, place_order: Place) -> None:
    """The line is down, the answer is lost, 409 while the first is running: one order, and its id."""
    item = f"item {uuid4()}"
    line = BrokenLine(shop, "refuse", "lose")
    told: list[Any] = []
    with line.listening() as url, shop.holding() as release:
        thread = threading.Thread(target=lambda: told.append(place_order(url, str(uuid4()), {"item": item})))
        thread.start()
        eventually("the client to meet a conflict", lambda: 409 in line.statuses or not thread.is_alive())
        release()
        thread.join(DEADLINE)
    assert line.statuses[:3] == ["refused", "lost", 409]
    assert line.statuses[-1] == 201
    assert [answer["id"] for answer in told] == [shop.one("SELECT id FROM shop_order WHERE item = %s", item)]
    assert shop.one("SELECT count(*) FROM shop_order WHERE item = %s", item) == 1
