"""How are connections opened, committed, and closed if an exception may have left them unusable?

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
    """Commit, unless a message has already sent COMMIT. If an exception interrupts the wait, nothing is cancelled.

    After Ctrl-C and, in newer versions, SystemExit, psycopg cancels the statement that it is waiting for. gunicorn
    stops slow workers with SystemExit. If a COMMIT is cancelled while it waits for a standby, it still takes effect,
    but only on this server: retries would get a replay, and a failover would then lose the order. If it is not
    cancelled, the server keeps waiting, and the key stays locked.
    """
    raw = connection.connection
    if (pgconn := getattr(raw, "pgconn", None)) is None:  # not psycopg's
        connection.commit()
    elif not pgconn.transaction_status:  # a message has sent COMMIT, so only set what Django sets after a COMMIT
        connection.errors_occurred, connection.run_commit_hooks_on_set_autocommit_on = False, True
    else:
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
