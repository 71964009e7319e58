"""What has been committed, and what hangs, as a second connection to the same database sees it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connection, connections
from django.utils import timezone

from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.shopapp.models import Order
from tests.step_rows import counted, miscounted

OBSERVER = "observer"
"""The alias of the second connection."""
PATIENCE = 2
"""Seconds until the server must have noticed that a connection was closed."""
HOLDS: list[int] = []
"""The advisory locks that the second connection holds on purpose."""
LOCKS = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
IDLE = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in%' AND pid <> pg_backend_pid()
"""


@contextmanager
def observing() -> Iterator[None]:
    """The second connection is there meanwhile."""
    other = connection.copy(OBSERVER)
    other.settings_dict["OPTIONS"].pop("pool", None)
    connections[OBSERVER] = other
    try:
        yield
    finally:
        other.close()
        del connections[OBSERVER]


def ask(sql: str, *values: Any) -> Any:
    """Return the first column of the first row."""
    with connections[OBSERVER].cursor() as cursor:
        cursor.execute(sql, values or None)
        return cursor.fetchone()[0]


def orders(key: str) -> int:
    return Order.objects.using(OBSERVER).filter(reference=key).count()


def row(key: str) -> IdempotencyKey | None:
    return IdempotencyKey.objects.using(OBSERVER).filter(key=key).first()


def is_done(key: str) -> bool:
    """Whether the key is completed and not expired."""
    found = row(key)
    return found is not None and found.status == "completed" and found.expires_at > timezone.now()


def change(key: str, **changes: Any) -> None:
    """Change the key's row by hand."""
    IdempotencyKey.objects.using(OBSERVER).filter(key=key).update(**changes)


def lapse(key: str) -> None:
    """The key's lease runs out, if it has one."""
    past = timezone.now() - timedelta(hours=1)
    IdempotencyKey.objects.using(OBSERVER).filter(key=key, status="in_progress").update(locked_until=past)


def expire(key: str) -> None:
    """The key's retention is over."""
    change(key, expires_at=timezone.now() - timedelta(days=2))


def empty() -> None:
    """There are no keys any more."""
    IdempotencyStep.objects.using(OBSERVER).all()._raw_delete(OBSERVER)
    IdempotencyKey.objects.using(OBSERVER).all()._raw_delete(OBSERVER)


def miscounts(key: str) -> Iterator[str]:
    """Where the row's counts are not those of its steps."""
    if (found := row(key)) is not None:
        steps = counted(found)
        if steps != (found.unknown, found.effects):
            yield f"counts {(found.unknown, found.effects)} beside steps {steps}"


def all_miscounts() -> Iterator[str]:
    yield from miscounted(OBSERVER).values()


def hold(number: int) -> None:
    """Another worker takes this lock, until `let_go`."""
    ask("SELECT pg_advisory_lock(%s)", number)
    HOLDS.append(number)


def reset() -> None:
    """Forget what a check that was interrupted may have left."""
    connections[OBSERVER].close()
    HOLDS.clear()


def let_go() -> None:
    while HOLDS:
        ask("SELECT pg_advisory_unlock(%s)", HOLDS.pop())


def left_on_the_server() -> Iterator[str]:
    """Locks and transactions that outlive the request. A connection that was closed takes a moment to end."""
    deadline = time.monotonic() + PATIENCE
    while (found := _LEFT[connection.vendor]()) and time.monotonic() < deadline:
        time.sleep(0.005)  # between two looks
    yield from found


def _left_on_postgresql() -> list[str]:
    found = []
    if ask(LOCKS):
        found.append("server: an advisory lock is left")
    if ask(IDLE):
        found.append("server: idle in transaction")
    return found


def _left_on_innodb() -> list[str]:
    # information_schema.innodb_trx is a cache, which is not renewed while it is read often.
    with connections[OBSERVER].cursor() as cursor:
        cursor.execute("SHOW ENGINE INNODB STATUS")
        status = cursor.fetchone()[2]
    return ["server: a transaction is left open"] if re.search(r"---TRANSACTION \d+, ACTIVE", status) else []


def _left_on_sqlite() -> list[str]:
    with connections[OBSERVER].cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("ROLLBACK")
        except connection.Database.OperationalError:
            return ["the database is locked"]
        except Exception as error:
            return [f"the database is locked: {error}"]
        finally:
            cursor.execute("PRAGMA busy_timeout = 10000")
    return []


_LEFT = {"postgresql": _left_on_postgresql, "mysql": _left_on_innodb, "sqlite": _left_on_sqlite}
