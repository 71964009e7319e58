"""Leased work under attack: a message of the journal and the statements of Django's cursor end it alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_idempotency import Operation, run_once
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.contracts.test_leased import elsewhere
from tests.shopapp.models import Order
from tests.ways import ALL_WAYS, going, sql

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True), pytest.mark.uncounted]
Act = Callable[[], Any]
STEPS, KEYS = IdempotencyStep._meta.db_table, IdempotencyKey._meta.db_table


@pytest.fixture(params=ALL_WAYS[::2], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with going(request.param):
        for number in range(3):
            outcome({}, f"warm-{number}")
        yield


def outcome(acts: dict[str, Act], key: str = "k") -> str:
    """What the worker's client gets, if these acts happen at these places."""

    def act(place: str) -> None:
        acts.get(place, lambda: None)()

    def pay(operation: Operation) -> None:
        operation.derive_key("charge")
        act("start")
        operation.call("charge", lambda: act("call"))
        act("between")
        operation.write("order", lambda: (Order.objects.create(reference=key), act("write"))[1])
        act("end")

    try:
        return "replayed" if run_once(pay, scope="s", key=key, operation="o", lease=60).replayed else "done"
    except Exception as error:
        return type(error).__name__


def other(statement: str) -> Act:
    """Another connection does this."""

    def run() -> None:
        with elsewhere() as start:
            start(sql, statement).result(30)

    return run


def caught() -> None:
    with suppress(DatabaseError):
        sql("SELECT 1 / 0")


steal = other(f"UPDATE {KEYS} SET attempt = attempt + 1 WHERE key = 'k'")
OF_K = f"(SELECT id FROM {KEYS} WHERE key = 'k')"
ACTS: dict[str, dict[str, Act]] = {
    **{f"a zombie at {place}": {place: steal} for place in ("start", "call", "between", "end")},
    "a person fails it in the call": {
        "call": other(
            f"UPDATE {KEYS} SET status = 'failed', locked_until = NULL, last_error = 'x', attention_at = now() "
            "WHERE key = 'k'"
        )
    },
    "its step is deleted in the call": {"call": other(f"DELETE FROM {STEPS} WHERE key_id = {OF_K}")},
    "its step gets a result in the call": {
        "call": other(f"UPDATE {STEPS} SET finished_at = now(), result = '{{\"value\": 2}}' WHERE key_id = {OF_K}")
    },
    "a step of that name is there": {
        "start": other(
            f"INSERT INTO {STEPS} (key_id, key_hash, scope_hash, name, kind, attempt, keyed, started_at) "
            f"SELECT id, key_hash, scope_hash, 'charge', 'call', 1, false, now() FROM {KEYS} WHERE key = 'k'"
        )
    },
    "COMMIT in the write": {"write": lambda: sql("COMMIT")},
    "COMMIT in the write, and more": {"write": lambda: (sql("COMMIT"), Order.objects.create(reference="k"))},
    "ROLLBACK in the write": {"write": lambda: sql("ROLLBACK")},
    "ROLLBACK in the write, and more": {"write": lambda: (sql("ROLLBACK"), Order.objects.create(reference="k"))},
    "a caught error in the write": {"write": caught},
    "set_rollback in the write": {"write": lambda: transaction.set_rollback(True)},
    "an error in the write": {"write": lambda: sql("SELECT 1 / 0")},
    "DEALLOCATE ALL at the start": {"start": lambda: sql("DEALLOCATE ALL")},
    "DEALLOCATE ALL in the write": {"write": lambda: sql("DEALLOCATE ALL")},
    "DISCARD ALL between": {"between": lambda: sql("DISCARD ALL")},
    "close in the call": {"call": lambda: connection.close()},
    "close in the write": {"write": lambda: connection.close()},
}
ENDS = {
    "a zombie at start": ("OperationInProgress", "in_progress", 0, 0, 0),
    "a zombie at call": ("OperationInProgress", "in_progress", 1, 0, 0),
    "a zombie at between": ("OperationInProgress", "in_progress", 0, 1, 0),
    "a zombie at end": ("OperationInProgress", "in_progress", 0, 1, 1),
    "a person fails it in the call": ("OperationInProgress", "failed", 1, 0, 0),
    "its step is deleted in the call": ("done", "failed", 1, 0, 1),
    "its step gets a result in the call": ("done", "failed", 1, 0, 1),
    "a step of that name is there": ("IntegrityError", "failed", 0, 0, 0),
    "COMMIT in the write": ("done", "completed", 0, 1, 1),
    "COMMIT in the write, and more": ("done", "completed", 0, 1, 2),
    "ROLLBACK in the write": ("TransactionBroken", "failed", 0, 1, 0),
    "ROLLBACK in the write, and more": ("TransactionBroken", "failed", 0, 1, 0),
    "a caught error in the write": ("InternalError", "failed", 0, 1, 0),
    "set_rollback in the write": ("TransactionManagementError", "failed", 0, 1, 0),
    "an error in the write": ("DataError", "failed", 0, 1, 0),
    "DEALLOCATE ALL at the start": ("done", "completed", 0, 1, 1),
    "DEALLOCATE ALL in the write": ("done", "completed", 0, 1, 1),
    "DISCARD ALL between": ("done", "completed", 0, 1, 1),
    "close in the call": ("done", "completed", 0, 1, 1),
    "close in the write": ("OperationalError", "failed", 0, 1, 0),
}
"""What the client hears; the key's status, its unknown steps and its effects; and how many orders there are."""


@pytest.mark.parametrize("name", ACTS)
def test_it_ends_alike_by_each_way(name: str) -> None:
    heard = outcome(ACTS[name])
    row = IdempotencyKey.objects.get(key="k")
    orders = Order.objects.filter(reference="k").count()
    assert (heard, row.status, row.unknown, row.effects, orders) == ENDS[name]
