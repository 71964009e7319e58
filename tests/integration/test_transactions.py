"""The package opens the transaction itself: what that means for the transactions of the view and of its caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import Client

from django_idempotency import TransactionBroken
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.integration.edge_urls")]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/durable", RuntimeError),
        ("/commits", TransactionManagementError),
        ("/autocommits", TransactionManagementError),
    ],
)
def test_the_view_cannot_commit_by_itself(post: Post, path: str, error: type[Exception]) -> None:
    """durable=True, commit() and set_autocommit() fail as under ATOMIC_REQUESTS, and leave nothing."""
    for _ in range(2):
        with pytest.raises(error):
            post(path)
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


@pytest.mark.parametrize("status", [200, 500])
def test_a_view_that_closes_its_connection_promises_nothing(post: Post, status: int) -> None:
    """The database has rolled back: no success is answered, and the key is free."""
    if status == 500:
        assert post("/closes?status=500").status_code == 500
    else:
        with pytest.raises(TransactionBroken):
            post("/closes?status=200")
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_inside_an_outer_transaction_it_is_a_savepoint(post: Post) -> None:
    """What rolls back outside rolls the key back too: order and key, or neither."""
    with transaction.atomic():
        assert post("/create").headers["Idempotency-Replayed"] == "false"
        assert post("/create").headers["Idempotency-Replayed"] == "true"
        transaction.set_rollback(True)
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert post("/create").headers["Idempotency-Replayed"] == "false"
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (1, 1)


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.urls("tests.integration.leased_urls")
def test_a_refusal_leaves_no_lock_in_the_outer_transaction(post: Post, in_threads: Callable[..., Any]) -> None:
    """That goes on for as long as its caller likes, and a person may want to decide about the key."""
    create_key("k", operation="changed", steps={"charge": 1})

    def lock(number: int) -> bool:
        with transaction.atomic():
            return IdempotencyKey.objects.select_for_update(nowait=True).exists()

    with transaction.atomic():
        assert post("/changed/atomic", key="k").status_code == 409
        assert in_threads(1, lock) == [True]


def test_a_failing_view_leaves_the_outer_transaction_usable(post: Post) -> None:
    """Only the savepoint is rolled back."""
    with transaction.atomic():
        Order.objects.create(reference="outer")
        with pytest.raises(RuntimeError):
            post("/durable")
        Order.objects.create(reference="after")
    assert list(Order.objects.order_by("pk").values_list("reference", flat=True)) == ["outer", "after"]


@contextmanager
def unreachable() -> Iterator[None]:
    """The server listens nowhere any more."""
    database = connections["default"]
    before = {name: database.settings_dict[name] for name in ("HOST", "PORT")}
    database.close()
    database.settings_dict.update(HOST="127.0.0.1", PORT="1")
    try:
        yield
    finally:
        database.close()
        database.settings_dict.update(before)


@pytest.mark.only_on("postgresql")
def test_r19_an_unreachable_database_fails_closed(post: Post) -> None:
    """The database's own error, and never an unprotected run: no order is there when it is back."""
    with unreachable(), pytest.raises(OperationalError):
        post("/create")
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert post("/create").headers["Idempotency-Replayed"] == "false"


@pytest.mark.only_on("postgresql")
def test_r19_a_bad_key_is_refused_without_any_database(post: Post) -> None:
    """Nobody has to be asked."""
    with unreachable():
        assert post("/create", key="a,b").status_code == 400


@pytest.mark.only_on("postgresql")
def test_a_serialization_failure_inside_an_outer_transaction_propagates(
    post: Post, in_threads: Callable[..., Any]
) -> None:
    """Only the outermost can start afresh."""
    snapshot_taken, committed = Event(), Event()

    def winner() -> None:
        assert snapshot_taken.wait(30)
        post("/create", client=Client())
        committed.set()

    def loser() -> str:
        _repeatable_read()
        with pytest.raises(OperationalError) as caught, transaction.atomic():  # noqa: PT012
            Order.objects.count()
            snapshot_taken.set()
            assert committed.wait(30)
            post("/create", client=Client())
        return str(getattr(caught.value.__cause__, "sqlstate", None))

    assert in_threads(2, lambda number: (winner, loser)[number]()) == [None, "40001"]
    assert Order.objects.count() == 1


def _repeatable_read() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@pytest.mark.only_on("sqlite")
def test_a_busy_sqlite_is_503_and_nothing_runs(post: Post, in_threads: Callable[..., Any]) -> None:
    """Whoever writes holds every key, so nobody can say whose: come back, unchanged."""
    locked, answered = Event(), Event()

    def writer() -> None:
        with transaction.atomic():
            locked.set()
            assert answered.wait(30)

    def sender() -> Any:
        assert locked.wait(30)
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
        try:
            return post("/create", client=Client())
        finally:
            answered.set()

    _, response = in_threads(2, lambda number: (writer, sender)[number]())
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.json()["title"] == "The idempotency store is busy"
    assert Order.objects.count() == 0
    assert post("/create").status_code == 201
