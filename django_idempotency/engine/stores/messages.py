"""Saves round trips to PostgreSQL: BEGIN goes along with a transaction's first statement, and COMMIT with its last.

Django sends BEGIN and COMMIT by themselves, and waits for each reply. With this module, a protected view usually sends
as many messages as an unprotected view inside `atomic()`. A view in leased mode sends each change of the journal as one
message. The pgjdbc and Npgsql drivers also send BEGIN together with the statement that follows it. psycopg asks libpq
before each statement whether a transaction is open, so it sends no second BEGIN.

# Note [When this module sends messages]
Tracing tools and multi-tenant packages must see each statement. This module therefore bypasses Django's cursor only if
nothing has been replaced. The connection objects of Django and psycopg must be direct instances of those packages' own
classes, not of subclasses, and all cursor methods must come from Django. In addition, there must be no execute wrapper
and no query log, and the `atomic()` block must be the outermost one, at the default isolation level.
"""

from __future__ import annotations

import select
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import django
from django.db import DatabaseError
from django.db.backends.utils import CursorWrapper

from ..conf import get_settings
from .connecting import wait_without_cancel
from .prepared import AFTER_THE_FIRST, BY_CURSOR, NEW, NEW_TEXT, PREPARED, TEXT, USED, State, Statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from .queries import Values

try:
    import psycopg
    from django.db.backends.postgresql.base import Cursor
    from psycopg import errors, generators
except ImportError:  # The project uses psycopg2, or it has no PostgreSQL driver.
    psycopg = None  # type: ignore[assignment]

T = TypeVar("T")
STATE = "_django_idempotency"
"""The attribute of psycopg's connection that holds its `State`. See Note [Prepared statements] in `prepared.py`."""
LOST = frozenset({"26000", "42P05"})
"""The SQLSTATEs of invalid_sql_statement_name and duplicate_prepared_statement."""
IDLE, ACTIVE, IN_TRANSACTION, IN_ERROR = 0, 1, 2, 3
"""libpq's PQTRANS_IDLE, PQTRANS_ACTIVE, PQTRANS_INTRANS and PQTRANS_INERROR."""
BEGIN, COMMIT = (b"", b"BEGIN; "), (b"", b"; COMMIT")
"""What a message begins or ends with: nothing at index 0 (False), and BEGIN or COMMIT at index 1 (True)."""
DONE = frozenset({1, 2})
"""libpq's PGRES_COMMAND_OK and PGRES_TUPLES_OK."""
PLAIN = (False, None, None, None)
"""The `autocommit`, `isolation_level`, `read_only` and `deferrable` for which psycopg sends a plain BEGIN."""
LARGE = 64 * 1024
"""The size in bytes above which a body is sent as a binary parameter: long hexadecimal text is slow to parse."""
POLL = getattr(select, "poll", None)  # not on Windows
CANCEL = 5.0
"""For how many seconds the server is asked to cancel a message, as in psycopg after Ctrl-C."""
SOON = 50
"""The time, in milliseconds, within which the server answers a claim that doesn't wait for a lock."""
WRAPPERS = ("django.db.backends.postgresql.base", "django.contrib.gis.db.backends.postgis.base")
"""The modules of Django's own connection classes."""
REPLACEABLE = ("cursor", "_cursor", "_prepare_cursor", "make_cursor", "create_cursor")
"""The methods that debugging tools replace to see each statement."""


# --- the messages


def begin(connection: Any, statements: dict[str, Statement], values: Values, *, last: bool = False) -> Any:
    """Send BEGIN and the claim in one message, and return the claim's result. If `last` is set, COMMIT is sent too.

    The message with a connection's first claim never contains COMMIT, so that a pooler without support for
    transactions refuses the claim before anything runs. The caller then commits the claim.

    When the claim is prepared, so are the other `statements`. The claim is the first of them.
    """
    raw, claim = connection.connection, statements["claim"]
    state, preparation = vars(raw)[STATE], b""
    after = AFTER_THE_FIRST.get(state.name, state)
    last = last and after is state
    if state is USED:
        # The claim is prepared last, so a connection that has it also has all the others.
        preparation = b"".join(statement.preparation for statement in reversed(statements.values()))
        after = PREPARED
    message, after = claim.filled(raw, after, values)
    results = _send(connection, b"BEGIN; " + preparation + message + COMMIT[last])
    if after is not state:
        setattr(raw, STATE, after)
    return results[-1 - last]


def send(connection: Any, statement: Statement, values: Values, *, last: bool) -> None:
    """Send a statement, with BEGIN if it is the first of its transaction, and with COMMIT if it is the `last`.

    After a COMMIT, the `atomic()` block finds no transaction to commit, and runs the `on_commit` hooks as usual.
    """
    raw, body = connection.connection, values.get("body")
    if body is not None and len(body) > LARGE:
        # A binary parameter needs psycopg's own cursor and a separate message. Django sends the COMMIT later.
        with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
            cursor.execute(statement.text, values)
    else:
        state, first = vars(raw)[STATE], raw.pgconn.transaction_status == IDLE
        message, after = statement.filled(raw, state, values)
        try:
            _send(connection, BEGIN[first] + message + COMMIT[last], commits=last)
        except DatabaseError as error:
            _go_on_by_text(raw, error)
            raise
        if after is not state:
            setattr(raw, STATE, after)


def end_while(connection: Any, work: Callable[[], T]) -> T:
    """Send COMMIT, call `work` while the server processes it, and return the result of `work`."""
    raw = connection.connection
    try:
        raw.pgconn.send_query(b"COMMIT")
        try:
            return work()
        finally:
            _received(raw)  # nothing was written, so it doesn't matter how the COMMIT ends
    except psycopg.Error:
        with connection.wrap_database_errors:
            raise


def end_and_lock(connection: Any, number: int) -> bool:
    """Send COMMIT, try to take the advisory lock with this number, and return whether it was free."""
    ends = b"" if connection.connection.pgconn.transaction_status == IDLE else b"COMMIT; "
    result = _send(connection, ends + b"SELECT pg_try_advisory_xact_lock(%d)" % number)[-1]
    return bool(result.get_value(0, 0) == b"t")


def roll_back(connection: Any, error: DatabaseError) -> bool:
    """If the claim's prepared statement can't be used, roll back and return True: the claim must be sent again."""
    raw = connection.connection
    if not _go_on_by_text(raw, error):
        return False
    with connection.wrap_database_errors:
        raw.rollback()
    return True


def _go_on_by_text(raw: Any, error: DatabaseError) -> bool:
    """If a prepared statement is lost or its name is taken, switch the connection to SQL text and return True."""
    if getattr(error.__cause__, "sqlstate", None) not in LOST or vars(raw)[STATE].name not in ("used", "prepared"):
        return False
    setattr(raw, STATE, TEXT)
    return True


# --- when messages are sent


def may_send(connection: Any, *statuses: int) -> bool:
    """Whether to send messages rather than use Django's cursor. See Note [When this module sends messages].

    The transaction must have one of these statuses. If BEGIN has not been sent yet (IDLE), psycopg must be configured
    for a BEGIN without options, and Django must commit at the end. If BEGIN has already been sent (IN_TRANSACTION),
    Django must send COMMIT and nothing else at the end of the current `atomic()` block. This function does not check
    whether the connection needs a rollback.
    """
    raw = connection.connection
    return (
        psycopg is not None
        and type(raw) is psycopg.Connection
        and (status := raw.pgconn.transaction_status) in statuses
        and connection.in_atomic_block
        and connection.commit_on_exit
        and len(connection.atomic_blocks) == 1
        and not connection.savepoint_ids
        and not connection.execute_wrappers
        and not connection.queries_logged
        and (status != IDLE or (raw.autocommit, raw.isolation_level, raw.read_only, raw.deferrable) == PLAIN)
        and raw.pgconn.parameter_status(b"client_encoding") == b"UTF8"
        and vars(connection).keys().isdisjoint(REPLACEABLE)
        and (vars(raw).get(STATE) or _first_state(connection, raw)) is not BY_CURSOR
    )


def _first_state(connection: Any, raw: Any) -> State:
    kind = type(connection)
    methods = [getattr(kind, name) for name in REPLACEABLE]
    methods += [CursorWrapper.execute, CursorWrapper._execute_with_wrappers, CursorWrapper._execute]  # type: ignore[attr-defined]
    if kind.__module__ not in WRAPPERS or raw.cursor_factory is not Cursor or not all(map(_is_original, methods)):
        state = BY_CURSOR
    else:
        # With a `prepare_threshold`, psycopg drops all prepared statements after every ROLLBACK.
        state = NEW if raw.prepare_threshold is None and get_settings().prepared_statements else NEW_TEXT
    setattr(raw, STATE, state)
    return state


def _is_original(method: Any) -> bool:
    """Whether the method's code is in one of Django's files. Its name and module don't show this, because replacements
    usually copy them."""
    own = str(Path(django.__file__).parent)
    return isinstance(method, FunctionType) and method.__code__.co_filename.startswith(own)


# --- how messages are sent


def _send(connection: Any, message: bytes, *, commits: bool = False) -> list[Any]:
    """Send a message, and return the results of its statements. psycopg's errors become Django's.

    A claim may have to wait for a migration, and a COMMIT for a standby. As with Django's cursor, signals are handled
    during this wait. libpq's own wait wouldn't do that, and if a pooler closed the connection, it would also show only
    the last error.

    psycopg's lock is not taken: no other thread uses Django's connection, and an exception could leave it locked.
    """
    try:
        results = _received(connection.connection, message, commits=commits)
        if results[-1].status in DONE:
            return results
        # A server or pooler first reports why it is closing the connection; libpq then adds its own, vaguer error.
        first = next(result for result in results if result.status not in DONE)
        error = errors.error_from_result(first, "utf-8")
        # An error from libpq itself, such as a lost connection, has no SQLSTATE.
        raise error if error.sqlstate else psycopg.OperationalError(str(error))
    except psycopg.Error:
        with connection.wrap_database_errors:
            raise


def _received(raw: Any, message: bytes | None = None, *, commits: bool = False) -> list[Any]:
    """Send the message, if there is one, and return all results. Signals are handled while this function waits.

    If an exception interrupts the wait, the server is asked to cancel the message. Otherwise, a claim that was sent
    with its COMMIT could still be committed, and the key would stay claimed without a worker. With `commits`, the
    message may store a result, and is never cancelled. See `commit` in `connecting.py`.

    psycopg's own wait takes 20 µs longer than libpq's. If the answer arrives quickly, the wait in this function takes
    only 10 µs longer.
    """
    results: list[Any] = []
    pgconn, soon = raw.pgconn, None
    try:
        if message is not None:
            pgconn.send_query(message)
        if POLL is not None and not _in_gevent():
            answer = POLL()
            answer.register(pgconn.socket, select.POLLIN)
            soon = answer.poll(SOON)
        if soon:
            pgconn.consume_input()
            while not pgconn.is_busy():
                if (result := pgconn.get_result()) is None:
                    return results
                results.append(result)
        return [*results, *wait_without_cancel(raw, generators.execute(pgconn))]
    except BaseException:
        if not commits and pgconn.transaction_status == ACTIVE:
            with suppress(psycopg.Error):
                raw.cancel_safe(timeout=CANCEL) if hasattr(raw, "cancel_safe") else raw.cancel()
        raise


@cache
def _in_gevent() -> bool:
    """Whether gevent has patched this process. In that case, libpq's own wait would block all greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("select"))
