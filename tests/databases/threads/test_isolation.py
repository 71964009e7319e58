"""What the isolation level does to a view that locks first and reads then: docs/operations.md, "The database"."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import Event
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Sum

from django_idempotency import run_once
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only_on("postgresql")]
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    from django.db.backends.postgresql.psycopg_any import IsolationLevel  # each driver numbers them in its own way

    wanted = IsolationLevel[request.param.replace(" ", "_")]
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", wanted)
    return str(request.param)


def lock_the_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE shopapp_order IN SHARE ROW EXCLUSIVE MODE")


def lock_the_row() -> None:
    Order.objects.select_for_update().get(reference="account")


def update_the_row() -> None:
    Order.objects.filter(reference="account").update(reference="account")


def until_somebody_waits_for_a_lock() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0]:
                return
    raise AssertionError("The second withdrawal never waited for the first one's lock.")


def withdrawals(in_threads: Callable[..., list[Any]], lock: Callable[[], None]) -> list[str]:
    """Withdraw 600 from 1,000 twice; the second one waits for the lock of the first."""
    Order.objects.create(reference="account", amount=1000)
    locked = Event()

    def withdraw(number: int) -> str:
        if number:
            assert locked.wait(60), "the first withdrawal never had its lock"

        def work() -> str:
            with transaction.atomic():
                lock()
                if not number:
                    locked.set()
                    until_somebody_waits_for_a_lock()
                if (Order.objects.aggregate(total=Sum("amount"))["total"] or 0) < 600:
                    return "refused"
                Order.objects.create(reference="withdrawal", amount=-600)
                return "paid"

        try:
            return str(run_once(work, scope="s", operation="withdraw", key=f"k{number}").value)
        except DatabaseError as error:
            return str(store_for("default").code(error))

    return in_threads(2, withdraw)


@pytest.mark.parametrize("lock", [lock_the_table, lock_the_row])
def test_a_lock_does_not_renew_the_snapshot_of_the_claim(
    in_threads: Callable[..., list[Any]], level: str, lock: Callable[[], None]
) -> None:
    """Under REPEATABLE READ, both are paid, and the account is overdrawn. The two other levels are right."""
    second = {"READ COMMITTED": "refused", "REPEATABLE READ": "paid", "SERIALIZABLE": "40001"}
    assert withdrawals(in_threads, lock) == ["paid", second[level]]


def test_an_update_of_a_common_row_is_right_under_each_level(in_threads: Callable[..., list[Any]], level: str) -> None:
    """PostgreSQL refuses the second one with 40001, and its retry is right."""
    second = {"READ COMMITTED": "refused", "REPEATABLE READ": "40001", "SERIALIZABLE": "40001"}
    assert withdrawals(in_threads, update_the_row) == ["paid", second[level]]


@pytest.mark.parametrize("inner", [False, True])
def test_the_error_of_a_view_that_sets_its_own_level_names_the_cure(inner: bool) -> None:
    """The claim is the first query of its transaction. Nothing is kept, and the key is free."""

    def work() -> None:
        with transaction.atomic() if inner else nullcontext(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")

    with pytest.raises(DatabaseError, match="must be called before any query") as told:
        run_once(work, scope="s", operation="work", key="k")
    assert "pass using= with its name" in told.value.__notes__[0]
    assert not IdempotencyKey.objects.exists()
