"""The page about events: what its consumers do with late deliveries, and with messages that fail."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test import RequestFactory

from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order

EVENT = {"id": "evt_1", "order": "a book", "amount": 5}


def almost_a_month_later() -> None:
    """As seen by the keys."""
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=29))


@pytest.fixture
def _no_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """These two refuse a second task named `ship` in one process. tests/projects/test_brokers.py runs them."""
    decorator = lambda **options: lambda function: function  # noqa: E731
    monkeypatch.setitem(sys.modules, "celery", SimpleNamespace(shared_task=decorator))
    monkeypatch.setitem(sys.modules, "dramatiq", SimpleNamespace(actor=decorator))


@pytest.mark.django_db
@pytest.mark.usefixtures("_no_registries")
@pytest.mark.parametrize(
    ("package", "block", "function", "given"),
    [
        ("django", "shop/events.py", "place_order", EVENT),
        ("django", "shop/outbox.py", "place_order", EVENT),
        ("django", "shop/stream.py", "place_order", EVENT),
        ("django", "shop/receiver.py", "receive", RequestFactory().post("/", EVENT, content_type="application/json")),
        ("celery", "shop/celery_tasks.py", "ship", "7"),
        ("django.tasks", "shop/tasks.py", "ship_once", "7"),
        ("procrastinate", "shop/procrastinate_tasks.py", "ship", "7"),
        ("huey", "shop/huey_tasks.py", "ship_once", "7"),
        ("dramatiq", "shop/dramatiq_tasks.py", "ship", "7"),
    ],
)
def test_a_late_delivery_makes_no_second_order(run: Any, package: str, block: str, function: str, given: Any) -> None:
    """A queue, a sender or cron may deliver again for weeks."""
    pytest.importorskip(package)
    work = getattr(run("docs/events.md", block, __name__="late"), function)  # huey has seen "documented"
    work(given)
    almost_a_month_later()
    work(given)
    assert Order.objects.count() == 1


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_an_asyncio_consumer_works_on_several_messages(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each work waits, inside its transaction, until the other one runs. A second delivery is replayed."""
    consume = run("docs/events.md", "shop/aio_consumer.py").consume
    events, running = [{"id": "one", "order": "a"}, {"id": "two", "order": "b"}], asyncio.Barrier(2)

    async def together(event: Any) -> Any:
        async with asyncio.timeout(20):
            await running.wait()
        return (await Order.objects.acreate(reference=event["order"])).pk

    monkeypatch.setattr(sys.modules["documented"], "place", together)
    first = asyncio.run(consume(events))
    almost_a_month_later()
    again = asyncio.run(consume(events))
    orders = list(Order.objects.order_by("reference").values_list("pk", flat=True))
    assert [(done.value, done.replayed) for done in first] == [(pk, False) for pk in orders]
    assert [(done.value, done.replayed) for done in again] == [(pk, True) for pk in orders]
    assert len(orders) == 2
