"""The client snippets of docs/clients.md, word for word, against the shop through a line that breaks."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.acceptance.conftest import RunningShop
from tests.acceptance.lines import BrokenLine
from tests.servers import DEADLINE, eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs/clients.md").read_text()
NODE = shutil.which("node")


def snippet(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n((?:#|//) client.*?)```", PAGE, re.DOTALL)
    return str(code)


def in_python(url: str, key: str, order: dict[str, Any]) -> str:
    documented: dict[str, Any] = {}
    exec(compile(snippet("python"), "docs/clients.md", "exec"), documented)
    with httpx.Client(base_url=url, timeout=DEADLINE) as client:
        try:
            return str(documented["place_order"](client, key, order)["id"])
        except httpx.HTTPStatusError as error:
            return f"refused with {error.response.status_code}"


def in_javascript(url: str, key: str, order: dict[str, Any]) -> str:
    assert NODE is not None
    call = (
        f"placeOrder('{url}/orders/', '{key}', {order!r}).then((answer) => console.log(answer.id))"
        ".catch((error) => console.log(`refused with ${error.message.slice(0, 3)}`))"
    )
    result = subprocess.run(
        [NODE, "-e", f"{snippet('js')}\n{call}"], capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    return result.stdout.strip()


@pytest.fixture(params=[in_python, in_javascript], ids=["Python", "JavaScript"])
def place_order(request: pytest.FixtureRequest) -> Callable[..., str]:
    if request.param is in_python:
        pytest.importorskip("stamina")
    elif NODE is None:
        pytest.skip("Node is not on this machine")
    return request.param  # type: ignore[no-any-return]


def test_it_retries_until_there_is_an_answer(shop: RunningShop, place_order: Callable[..., str]) -> None:
    """Nobody answers, the answer is lost, 409 while the first is running: one order, and its id."""
    item = f"item {uuid4()}"
    line = BrokenLine(shop, "refuse", "lose", "pass", *["pass"] * 5)
    told: list[str] = []
    with line.listening() as url, shop.holding() as release:
        thread = threading.Thread(target=lambda: told.append(place_order(url, str(uuid4()), {"item": item})))
        thread.start()
        eventually("the client to meet a conflict", lambda: 409 in line.statuses or not thread.is_alive())
        release()
        thread.join(DEADLINE)
    assert line.statuses[:3] == ["refused", "lost", 409]
    assert line.statuses[-1] == 201
    assert told == [str(shop.one("SELECT id FROM shop_order WHERE item = %s", item))]
    assert shop.one("SELECT count(*) FROM shop_order WHERE item = %s", item) == 1


def test_it_does_not_retry_what_is_final(shop: RunningShop, place_order: Callable[..., str]) -> None:
    """A key that was used for something else: one request, and the answer is told."""
    key = str(uuid4())
    httpx.post(f"{shop.url}/orders/", json={"item": "another"}, headers={"Idempotency-Key": key})
    line = BrokenLine(shop, "pass")
    with line.listening() as url:
        assert place_order(url, key, {"item": "a book"}) == "refused with 422"
    assert line.statuses == [422]
