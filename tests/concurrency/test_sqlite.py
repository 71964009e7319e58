"""SQLite: a transaction that writes holds every key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from tests.concurrency.held_urls import GO, STARTED
from tests.shopapp.models import Order

Post = Callable[..., Any]
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.concurrency.held_urls")]


@pytest.fixture(autouse=True)
def _fresh_events() -> None:
    STARTED.clear()
    GO.clear()


@pytest.mark.only_on("sqlite")
def test_a_locked_database_is_503(post: Post, in_threads: Threads) -> None:
    """The lock may be about another key. Nothing was done."""

    def send(number: int) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 50")
        response = post("/create", client=Client())
        GO.set()
        return response

    def hold(number: int) -> None:
        with transaction.atomic():
            Order.objects.create()
            STARTED.set()
            assert GO.wait(30)

    def run(number: int) -> Any:
        if number == 0:
            return hold(number)
        assert STARTED.wait(30)
        return send(number)

    _, response = in_threads(2, run)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.json()["title"] == "The idempotency store is busy"
    assert Order.objects.count() == 1
