"""What the documented clients keep: over a kill, over a reload of the page, and after a refusal."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from uuid import RFC_4122, UUID, uuid4

import httpx
import pytest

from django_idempotency.engine.protocol.key_syntax import check_dated, is_late
from tests.acceptance.conftest import RunningShop
from tests.acceptance.documented_clients import NODE, node, python_client, python_outbox, snippet
from tests.acceptance.lines import BrokenLine
from tests.browser.chromium import CHROMIUM, FLAGS
from tests.servers import DEADLINE, eventually

ORDERS = "SELECT count(*) FROM shop_order WHERE item = %s"


@pytest.mark.parametrize("language", ["python", "js"])
def test_a_key_says_when_it_was_made(language: str) -> None:
    """As `late_keys="refuse"` asks for. Two keys of one moment differ."""
    if language == "js" and NODE is None:
        pytest.skip("Node is not on this machine")
    keys = (
        node("Promise.resolve([newKey(), newKey()])")
        if language == "js"
        else [python_client()["new_key"]() for _ in range(2)]
    )
    assert keys[0] != keys[1]
    for key in keys:
        assert check_dated(key) == key
        assert UUID(key).variant == RFC_4122
        assert not is_late(key, DEADLINE, time.time())


def test_a_killed_process_leaves_its_orders_to_the_next_one(shop: RunningShop, tmp_path: Path) -> None:
    """kill -9 after the answer was lost. The next process sends the same key: one order."""
    item, box = f"item {uuid4()}", str(tmp_path / "outbox")
    with python_outbox(box) as outbox:
        outbox.put({"item": item})
    line = BrokenLine(shop, "lose")
    with line.listening() as url, shop.holding() as release:
        deliver = f"list(Outbox({box!r}).deliver(httpx.Client(base_url={url!r}, timeout={DEADLINE})))"
        process = subprocess.Popen([sys.executable, "-c", f"{snippet('python')}\n{deliver}"])
        eventually("the answer to be lost", lambda: line.statuses)
        process.kill()
        process.wait(DEADLINE)
        release()
        with python_outbox(box) as outbox, httpx.Client(base_url=url, timeout=DEADLINE) as client:
            ((order, answer),) = outbox.deliver(client)
            with python_outbox(box) as another:
                assert list(another.deliver(client)) == []
    assert order == {"item": item}
    assert answer["id"] == shop.one("SELECT id FROM shop_order WHERE item = %s", item)
    assert (len(line.keys), shop.one(ORDERS, item)) == (1, 1)


def test_a_page_that_is_loaded_again_finds_its_order(shop: RunningShop) -> None:
    """In Chromium: the page is gone before the answer comes. One order, and the storage is empty then."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    item = f"item {uuid4()}"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(base_url=shop.url)
        page.goto("/admin/login/")  # any page of the shop
        page.add_script_tag(content=snippet("js"))
        sent: list[int] = []
        # The shop answers the first request, and the page never gets that answer.
        page.route("**/orders/", lambda route: route.continue_() if sent else sent.append(route.fetch().status))
        page.evaluate("item => void new Outbox('/orders/').submit('checkout', {item})", item)
        eventually("the shop to answer", lambda: page.evaluate("1") and sent)
        page.reload()
        page.add_script_tag(content=snippet("js"))
        (answer,) = page.evaluate("Promise.all(new Outbox('/orders/').resume())")
        assert page.evaluate("new Outbox('/orders/').entries()") == {}
        browser.close()
    assert (sent, answer["item"]) == ([201], item)
    assert shop.one(ORDERS, item) == 1
