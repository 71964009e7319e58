"""PostgreSQL: BEGIN and COMMIT travel in one message with the statement beside them, as pgjdbc and Npgsql do it.

Django waits for the answer to each. Together with the claim and the result they cost a keyed request no more round
trips than the bare view has. Only where nobody can tell the difference: psycopg 3 binding on the client (several
statements in one message of the simple protocol), the outermost `atomic()`, which commits at its end, the default
isolation, and neither execute wrappers nor a query log, who are promised each statement for itself. Everywhere else
the plain way is taken.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

IDLE = 0
"""libpq's PQTRANS_IDLE"""


def may_open(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> bool:
    """Would psycopg send a plain BEGIN before the next statement, in a transaction that is Django's to commit?"""
    raw: Any = connection.connection
    return (
        _may_shape(connection, cursor)
        and getattr(raw, "_autocommit", None) is False
        and raw.pgconn.transaction_status == IDLE
        and (raw.isolation_level, raw.read_only, raw.deferrable) == (None, None, None)
    )


def open_with(connection: BaseDatabaseWrapper, cursor: CursorWrapper, sql: str, params: list[Any]) -> None:
    """Begin the transaction with this statement."""
    raw: Any = connection.connection
    # psycopg has no public way to say "I send the BEGIN": its `autocommit` cannot be set back inside a transaction,
    # where it must be off, or server-side cursors would be made WITH HOLD and a statement after a raw ROLLBACK commit.
    raw._autocommit = True
    try:
        cursor.execute(f"BEGIN; {sql}", params)
    finally:
        raw._autocommit = False
    cursor.nextset()


def may_close(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> bool:
    """Will the end of the current `atomic()` send COMMIT, and nothing else?"""
    return _may_shape(connection, cursor) and not connection.needs_rollback


def close_with(cursor: CursorWrapper, sql: str, params: list[Any]) -> None:
    """Commit with this statement. `atomic()` then finds no transaction to commit, and runs the `on_commit` hooks."""
    cursor.execute(f"{sql}; COMMIT", params)


@cache
def _client_cursor() -> Any:
    """psycopg's class; imported late, because projects on other databases have no use for it."""
    try:
        from psycopg import ClientCursor
    except ImportError:  # psycopg2
        return ()
    return ClientCursor


def _may_shape(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> bool:
    return (
        isinstance(getattr(cursor, "cursor", None), _client_cursor())
        and not connection.execute_wrappers
        and not connection.queries_logged
        and connection.in_atomic_block
        and connection.commit_on_exit
        and not connection.savepoint_ids
    )
