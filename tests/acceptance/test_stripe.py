"""A real client library that makes keys of its own: Stripe's, pointed at the shop through a line that breaks."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.acceptance.conftest import RunningShop
from tests.acceptance.lines import BrokenLine
from tests.servers import DEADLINE, eventually

stripe = pytest.importorskip("stripe")


def test_it_ends_with_one_charge(shop: RunningShop) -> None:
    """The first answer is lost, the retry meets 409, the next line breaks; then the first one's charge."""
    line = BrokenLine(shop, "lose", "pass", "refuse", "pass", "pass")
    with line.listening() as url, shop.holding() as release:
        client = stripe.StripeClient("sk_test_shop", base_addresses={"api": url}, max_network_retries=5)
        result: list[Any] = []
        thread = threading.Thread(
            target=lambda: result.append(client.v1.charges.create({"amount": 4990, "currency": "eur"}))
        )
        thread.start()
        eventually("the retry to meet a conflict", lambda: 409 in line.statuses)
        release()
        thread.join(DEADLINE)
    assert [charge.amount for charge in result] == [4990]
    assert line.statuses[:4] == ["lost", 409, "refused", 200]
    assert len(line.keys) == 1
    assert shop.one("SELECT count(*) FROM shop_order WHERE item = 'a charge of 4990'") == 1
