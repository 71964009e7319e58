"""Long-running work in the shop: 202, a task that runs once, and a page that tells the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from tests.acceptance.conftest import RunningShop
from tests.acceptance.pages import ROOT, blocks
from tests.servers import eventually, http_get, http_post


def order_report(shop: RunningShop, item: str, key: str) -> httpx.Response:
    return http_post(f"{shop.url}/reports/", json={"item": item}, headers={"Idempotency-Key": key})


def page(shop: RunningShop, answer: httpx.Response) -> Any:
    return http_get(shop.url + answer.headers["Location"]).json()


@contextmanager
def counting_takes_long(shop: RunningShop) -> Iterator[None]:
    with psycopg.connect(shop.dsn) as holder:
        holder.execute("LOCK TABLE shop_order")
        yield


def test_a_retry_gets_the_same_202(shop: RunningShop) -> None:
    """While the task runs and after its end. The page tells the end; the task has the client's key."""
    key, item = str(uuid4()), f"item {uuid4()}"
    with counting_takes_long(shop):
        first = order_report(shop, item, key)
        again = order_report(shop, item, key)
        assert page(shop, first) == {"status": "in_progress", "orders": None}
    assert (first.status_code, first.json(), first.headers["Retry-After"]) == (202, {"status": "in_progress"}, "1")
    for retry in (again, order_report(shop, item, key)):
        assert retry.headers["Idempotency-Replayed"] == "true"
        assert (retry.status_code, retry.content) == (202, first.content)
        assert retry.headers["Location"] == first.headers["Location"]
    # No order of that item.
    assert eventually("the end", lambda: (found := page(shop, first))["orders"] is not None and found) == {
        "status": "failed",
        "orders": 0,
    }
    operations = "SELECT string_agg(operation, ', ' ORDER BY id) FROM django_idempotency_idempotencykey WHERE key = %s"
    assert shop.one(operations, key) == "order a report, make_report"


def test_the_page_shows_the_shop() -> None:
    """Its code is the shop's own."""
    shown = blocks("docs/recipes.md")["shop/reports.py"].strip()
    assert shown in (ROOT / "testproject/shop/reports.py").read_text()
