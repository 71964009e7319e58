"""PostgreSQL: BEGIN and COMMIT travel in one message with the statement beside them, as pgjdbc and Npgsql send them.

Django sends each alone and waits for its answer. In one message with the claim and the result, they cost a keyed
request no more round trips than the bare view has. A leased write has them with the start and the end of its step. This
is done only where it makes no other difference:

* psycopg 3 binds parameters on the client, so that one message of the simple protocol can hold several statements;
* the `atomic()` block is the outermost one, which commits at its end, in the default isolation level;
* there are no execute wrappers and no query log, which are promised each statement for itself.

Everywhere else, each statement is sent alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorDebugWrapper, CursorWrapper

IDLE = 0
"""libpq's PQTRANS_IDLE"""
BASE, POSTGRESQL = "django.db.backends.base.base", "django.db.backends.postgresql.base"
"""The modules of Django that open cursors."""
KEPT = "_idempotency_cursor"
"""The attribute of Django's connection that holds the kept cursor."""


def cursor_of(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """An open cursor for a message of this module, which must not close it. Ask `may_open` or `may_close` next.

    To make a cursor costs as much as to send a statement. So the cursor is kept with Django's connection, until that
    reconnects. A cursor of the query log is not kept.
    """
    if not _opens_as_django(connection):
        return connection.cursor()
    kept: Any = connection.__dict__.get(KEPT)
    if kept is not None and kept.cursor.connection is connection.connection:
        return kept  # type: ignore[no-any-return]
    cursor = connection.cursor()
    if not isinstance(cursor, CursorDebugWrapper):
        setattr(connection, KEPT, cursor)
    return cursor


def forget_cursor(connection: BaseDatabaseWrapper) -> None:
    """Do not keep this cursor: it would hold a large statement or row in memory until its next statement."""
    connection.__dict__.pop(KEPT, None)


def _opens_as_django(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django's own methods open this connection's cursors.

    Packages for tenants set the `search_path` or a role as a cursor is opened, and tools for debugging put in a method
    of their own. Both need each cursor anew.
    """
    kind: Any = type(connection)
    return (
        kind.cursor.__module__ == kind._cursor.__module__ == kind._prepare_cursor.__module__ == BASE
        and kind.create_cursor.__module__ == POSTGRESQL
        and "cursor" not in connection.__dict__
    )


def may_open(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> bool:
    """Whether psycopg would send a plain BEGIN before the next statement, in a transaction that Django commits."""
    raw: Any = connection.connection
    return (
        _may_shape(connection, cursor)
        and getattr(raw, "_autocommit", None) is False
        and raw.pgconn.transaction_status == IDLE
        and (raw.isolation_level, raw.read_only, raw.deferrable) == (None, None, None)
    )


def open_with(connection: BaseDatabaseWrapper, cursor: CursorWrapper, sql: str, params: list[Any]) -> Any:
    """Begin the transaction with this statement.

    Returns:
        The driver's cursor, at the rows of the statement. They are in memory, so reading them needs no wrapper of
        Django's around it.
    """
    raw: Any = connection.connection
    # psycopg has no public way to say "I send the BEGIN". Its public `autocommit` cannot be switched off inside a
    # transaction. It must be off there: otherwise server-side cursors would be made WITH HOLD, and a statement after a
    # raw ROLLBACK would commit.
    raw._autocommit = True
    try:
        cursor.execute(f"BEGIN; {sql}", params)
    finally:
        raw._autocommit = False
    driver: Any = cursor.cursor
    driver.nextset()
    return driver


def roll_back(connection: BaseDatabaseWrapper) -> None:
    """Undo the BEGIN after a statement of `open_with` has failed. The same `atomic()` may then begin again."""
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        raw.rollback()


def may_close(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> bool:
    """Whether the end of the current `atomic()` will send COMMIT, and nothing else."""
    return _may_shape(connection, cursor) and not connection.get_rollback()


def close_with(cursor: CursorWrapper, sql: str, params: list[Any]) -> None:
    """Commit with this statement. `atomic()` then finds no transaction to commit, and runs the `on_commit` hooks."""
    cursor.execute(f"{sql}; COMMIT", params)


@cache
def _client_cursor() -> Any:
    """psycopg's class. Imported late: projects on other databases do not have psycopg."""
    try:
        from psycopg import ClientCursor
    except ImportError:  # psycopg2
        return ()
    return ClientCursor


def takes_several(cursor: CursorWrapper) -> bool:
    """Whether the driver sends several statements in one message: psycopg 3 that binds parameters itself."""
    return isinstance(getattr(cursor, "cursor", None), _client_cursor())


def _may_shape(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> bool:
    return (
        takes_several(cursor)
        and not connection.execute_wrappers
        and not connection.queries_logged
        and connection.in_atomic_block
        and connection.commit_on_exit
        and not connection.savepoint_ids
    )
