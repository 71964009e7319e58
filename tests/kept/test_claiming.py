"""A database that cannot be written to at the claim: nothing has run, and the request may be sent again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction

from django_idempotency import StoreBusy, run_once
from django_idempotency.engine.stores import _store
from django_idempotency.models import IdempotencyKey
from tests.http import posting_to_a_view, problem
from tests.shopapp.models import Order
from tests.sql import ask
from tests.tap import tapped
from tests.unreachable import READ_ONLY, UNREACHABLE, reached_by

pytestmark = pytest.mark.django_db(transaction=True)
ON = connection.vendor
END = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}
"""A statement that ends its own connection."""


@contextmanager
def without_a_connection_left_in_the_pool() -> Iterator[None]:
    pool = {"min_size": 1, "max_size": 1, "timeout": 0.1}
    with reached_by({"CONN_MAX_AGE": 0, "OPTIONS": {"pool": pool}}) as wrapper:
        wrapper.pool.open()
        held = wrapper.pool.getconn(timeout=30)
        try:
            yield
        finally:
            wrapper.pool.putconn(held)
            wrapper.close_pool()


@contextmanager
def without_a_connection_left_for_the_role() -> Iterator[None]:
    """The server's own limit says the same, with the same code."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE full LOGIN PASSWORD 'full' CONNECTION LIMIT 0")
        try:
            with reached_by({"USER": "full", "PASSWORD": "full"}):
                yield
        finally:
            cursor.execute("DROP ROLE full")


@contextmanager
def in_a_new_process() -> Iterator[None]:
    """Which has not asked yet what kind of database this is."""
    _store.cache_clear()
    with reached_by(UNREACHABLE[ON]):
        yield


@contextmanager
def with_the_connection_cut() -> Iterator[None]:
    with tapped() as tap:
        tap.cut()
        yield


only_on_postgresql = pytest.mark.only_on("postgresql")
DOWN = [
    pytest.param(lambda: reached_by(UNREACHABLE[ON]), id="unreachable"),
    pytest.param(lambda: reached_by(READ_ONLY[ON]), id="read-only"),
    pytest.param(in_a_new_process, id="unreachable for a new process"),
    pytest.param(without_a_connection_left_in_the_pool, marks=only_on_postgresql, id="pool"),
    pytest.param(without_a_connection_left_for_the_role, marks=only_on_postgresql, id="too many connections"),
    pytest.param(with_the_connection_cut, marks=only_on_postgresql, id="cut"),
]


def once(**options: Any) -> Any:
    return run_once(lambda *args: Order.objects.create().pk, scope="s", key="k", operation="o", **options)


@pytest.mark.parametrize("lease", [None, 60])
@pytest.mark.parametrize("down", DOWN)
def test_what_never_ran_is_503_and_is_in_the_log(down: Any, lease: int | None, caplog: Any) -> None:
    send = posting_to_a_view(lease=lease)
    with down():
        answer = send()
    assert (answer.status_code, problem(answer)["code"], answer.headers["Retry-After"]) == (503, "busy", "1")
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (record.name, record.getMessage()) == (
        "django_idempotency",
        "Database 'default' cannot take an idempotency key. Nothing was done.",
    )
    assert issubclass(record.exc_info[0], DatabaseError)
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert send().status_code == 200


@pytest.mark.parametrize("lease", [None, 60])
@pytest.mark.parametrize("down", DOWN)
def test_run_once_raises_store_busy(down: Any, lease: int | None) -> None:
    with down(), pytest.raises(StoreBusy):
        once(lease=lease)
    assert once(lease=lease).replayed is False


@only_on_postgresql
@pytest.mark.parametrize("new_process", [False, True])
@pytest.mark.parametrize("begun", ["atomic", "set_autocommit"])
def test_in_a_transaction_of_the_caller_the_error_is_the_callers(begun: str, new_process: bool) -> None:
    """Its writes are lost with the connection. Whoever is told "busy" could go on without them."""
    with tapped() as tap:
        wrapper: Any = connections["default"]

        def work() -> None:
            Order.objects.create()
            tap.cut()
            if new_process:
                _store.cache_clear()
            once()

        if begun == "atomic":
            work = transaction.atomic(work)
        else:
            wrapper.set_autocommit(False)
        with pytest.raises(OperationalError):
            work()
        wrapper.close()
    assert not Order.objects.exists()


@only_on_postgresql
def test_only_the_claim_is_answered_so() -> None:
    """Whether a COMMIT whose answer is lost has happened is not known."""
    with tapped() as tap:
        once()
        messages = tap.take()
        outcomes: list[Any] = []
        for number in range(1, len(messages) + 1):
            Order.objects.all().delete()
            IdempotencyKey.objects.all().delete()
            tap.lose_answer(number)
            with pytest.raises((StoreBusy, OperationalError)) as raised:
                once()
            connections["default"].close_if_unusable_or_obsolete()
            outcomes.append((raised.type, Order.objects.count()))
    assert outcomes == [(StoreBusy, 0), (OperationalError, 0), (OperationalError, 1)]


@only_on_postgresql
def test_a_view_that_forbids_itself_to_write_is_told_by_the_database() -> None:
    with transaction.atomic():
        assert ask("SELECT set_config('transaction_read_only', 'on', true)") == ("on",)
        with pytest.raises(DatabaseError, match="read-only"):
            once()
        transaction.set_rollback(True)


@pytest.mark.parametrize("end", [pytest.param(END.get(ON), marks=pytest.mark.only_on(*END), id=ON)])
def test_a_connection_that_has_ended_before_is_store_busy_once(end: str) -> None:
    """psycopg2 and PyMySQL raise InterfaceError. A job has no end of a request, at which Django would look."""
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute(end)
    with pytest.raises(StoreBusy):
        once()
    assert once().replayed is False
