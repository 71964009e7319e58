"""How does a connection open and commit, and how is it closed if an exception may have left it unusable?

See Note [An exception at any moment] in `transactions.py`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from django.db import Error

INTERVAL = 0.1
"""How often psycopg looks for signals while it waits, in seconds, as in psycopg itself."""


def opened(connection: Any) -> None:
    """Open the connection if it is closed.

    If an exception strikes while the connection is being opened, the connection is closed again, because it may not be
    fully configured. The next query opens another one.
    """
    if connection.connection is not None:
        return
    try:
        connection.ensure_connection()
    except BaseException:
        give_up(connection)
        raise


def commit(connection: Any) -> None:
    """Send COMMIT by itself. No exception that interrupts the wait cancels it.

    psycopg cancels what it waits for after Ctrl-C and, in newer versions, after SystemExit, with which gunicorn ends a
    worker that takes too long. If the server waits for its standby, a cancelled COMMIT takes effect at once, on this
    server alone. Retries would replay the response of an order that a failover then loses. Without the cancellation,
    the server goes on waiting, and keeps the key's lock.
    """
    raw = connection.connection
    if not hasattr(raw, "pgconn"):  # not psycopg's
        connection.commit()
        return
    try:
        vars(raw)["wait"] = partial(wait_without_cancel, raw)
        connection.commit()
    finally:
        vars(raw).pop("wait", None)


def wait_without_cancel(raw: Any, work: Any) -> Any:
    """Wait for psycopg's generator as `raw.wait` does, but leave the server alone after Ctrl-C or SystemExit."""
    from psycopg import waiting  # not on other databases

    return waiting.wait(work, raw.pgconn.socket, INTERVAL)


def give_up(connection: Any) -> None:
    """Close a connection, because Django, the driver and the server may disagree about its transaction.

    The next query opens another connection. Django would reset its stacks of blocks only during that query, so they are
    reset here.
    """
    connection.closed_in_transaction = connection.needs_rollback = False
    replace_held_lock(connection)
    forget_blocks(connection)
    _cut_off(connection)
    with suppress(Error):
        connection.close()
        if connection.connection is not None:  # Django doesn't close SQLite's databases in memory
            connection.rollback()
            connection.set_autocommit(True)


def without_held_locks(connection: Any) -> None:
    """Remove locks that an exception has left held when it interrupted a query.

    The interrupted query ran between two requests, outside our transactions. Unless its locks are removed, every later
    query waits for them forever.
    """
    lock = getattr(connection.connection, "lock", None)
    if connection._thread_sharing_lock.locked() or (lock is not None and lock.locked()):
        replace_held_lock(connection)
        if is_stuck(connection):
            close_stuck(connection)


def forget_blocks(connection: Any) -> None:
    connection.in_atomic_block = False
    connection.atomic_blocks, connection.savepoint_ids = [], []


def is_stuck(connection: Any) -> bool:
    """Whether psycopg would wait forever for its own lock.

    In Python 3.14, an exception can strike just after a `with` statement has taken a lock. The lock is then never
    released.
    """
    lock = getattr(connection.connection, "lock", None)
    return lock is not None and bool(lock.locked())


def replace_held_lock(connection: Any) -> None:
    """Replace the lock that Django takes before each query to find out whether threads share the connection.

    An exception can leave this lock held, and every later query would then wait for it. psycopg's lock has the same
    problem. Other threads hold this lock only briefly, while they read or change a counter.
    """
    if connection._thread_sharing_lock.locked():
        connection._thread_sharing_lock = Lock()


def close_stuck(connection: Any) -> None:
    """Close the connection. Inside the caller's block, Django then refuses all further queries."""
    _cut_off(connection)
    connection.close()


def _cut_off(connection: Any) -> None:
    """Close psycopg's connection without waiting for its lock, or for a statement that still runs on the server."""
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is not None:
        pgconn.finish()
