"""The page about events: several works in one asyncio program."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from django.db import connection

from tests.shopapp.models import Order


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
    first, again = (asyncio.run(consume(events)) for _ in range(2))
    orders = list(Order.objects.order_by("reference").values_list("pk", flat=True))
    assert [(done.value, done.replayed) for done in first] == [(pk, False) for pk in orders]
    assert [(done.value, done.replayed) for done in again] == [(pk, True) for pk in orders]
    assert len(orders) == 2
