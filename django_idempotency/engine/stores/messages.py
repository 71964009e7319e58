"""For PostgreSQL, this module sends the statements of a usual request without Django's cursors, in fewer messages.

With these messages, a request with a key needs no more messages than a request in an `atomic()` view without
protection. Django sends BEGIN and COMMIT in two messages of their own, and waits for each answer. This module sends
BEGIN together with the claim, and COMMIT together with the result. The drivers pgjdbc and Npgsql also do this. Before
each statement, psycopg asks libpq whether a transaction is open. So psycopg notices the BEGIN of this module by itself.

# Note [Where messages go beside Django's cursors]
Packages for tenants and tracers must see each statement, so this module works only where no such tool is active. The
connection must be of Django's own class and psycopg's own class, with no replaced method, no execute wrapper and no
query log. The block must be the outermost `atomic()` block, in the default isolation. Otherwise, Django's cursor sends
the statements.

# Note [Prepared statements]
The first claim of a connection is sent as text, because a connection for one request only would not save time by a
preparation. The message of the connection's second claim also prepares the statements. The name of a prepared statement
contains a hash of its SQL, so that two releases behind one pooler never use one name for two statements. The state of a
connection is an attribute of psycopg's connection, because a pool gives psycopg's connection to the next request.

A prepared statement can be lost (DISCARD ALL). Its name can be taken already (by another client behind a pooler). After
a migration, the statement can have other result columns than before. A claim with one of these errors is rolled back
and sent as text. From then on, this connection sends all statements as text. At the completion, the view has run
already, so a completion with one of these errors is never repeated: the request fails, and nothing of the request is
committed.

If PostgreSQL plans a statement while the table is empty, the plan reads the whole table, and stays until the connection
ends. So the prepared statements are planned with `enable_seqscan` off. The prepared statements switch `enable_seqscan`
on again themselves, because the setting must not change the queries of the view.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import django
from django.db import DataError
from django.db.backends.utils import CursorWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db import DatabaseError

    from .queries import Values

try:
    import psycopg
    from django.db.backends.postgresql.base import Cursor
    from psycopg import errors, generators, pq
except ImportError:  # psycopg2, or no driver for PostgreSQL
    psycopg = None  # type: ignore[assignment]

STATE = "_django_idempotency"
"""The attribute of psycopg's connection that holds one of the following states. See Note [Prepared statements]."""
BY_CURSOR, NEW, TEXT, USED, PREPARED = "by cursor", "new", "text", "used", "prepared"
LOST = frozenset({"26000", "42P05", "0A000"})
"""PostgreSQL's invalid_sql_statement_name, duplicate_prepared_statement and feature_not_supported. The last code means
here that a statement now has other result columns than at its preparation."""
IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""The numbers of libpq's states PQTRANS_IDLE, PQTRANS_INTRANS and PQTRANS_INERROR."""
LARGE = 64 * 1024
"""A body with more bytes than this is sent as a binary parameter: the server parses long hexadecimal text slowly."""
WRAPPERS = ("django.db.backends.postgresql.base", "django.contrib.gis.db.backends.postgis.base")
"""The modules with Django's own classes of connections."""
REPLACEABLE = ("cursor", "_cursor", "_prepare_cursor", "make_cursor", "create_cursor")
"""The methods that debugging tools replace in order to see each statement."""
PARAMETER = re.compile(r"%\((\w+)\)s")


class Statement:
    """A statement that is sent as text first. Later, only the name of the prepared statement is sent.

    text: the SQL. Its parameters are written as `%(name)s`. In a prepared statement, `{seqscan_on}` becomes one
    more column, which allows sequential scans again.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.text = text.format(seqscan_on="")
        names = list(dict.fromkeys(PARAMETER.findall(text)))
        self._placeholders = [(name, name.encode()) for name in names]
        self._text = PARAMETER.sub(r"%(\1)b", self.text).encode()
        numbered = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
        prepared = numbered.format(seqscan_on=", set_config('enable_seqscan', 'on', true)")
        name = f"idempotency_{kind}_{sha256(prepared.encode()).hexdigest()[:12]}"
        self.preparation = f"PREPARE {name} AS {prepared}; ".encode()
        arguments = ", ".join(f"%({name})b" for name in names)
        self._call = f"SET LOCAL enable_seqscan = off; EXECUTE {name}({arguments})".encode()

    def filled(self, raw: Any, values: Values) -> bytes:
        """Return the statement as it is sent on this connection. A single loop saves time in each request."""
        escape, literals = pq.Escaping(raw.pgconn).escape_literal, {}
        for name, placeholder in self._placeholders:
            value = values[name]
            if value is None:
                literals[placeholder] = b"NULL"
            elif isinstance(value, str):
                if "\0" in value:
                    # libpq would cut the text off at the NUL.
                    raise DataError("PostgreSQL text cannot contain NUL (0x00) bytes.")
                literals[placeholder] = escape(value.encode())
            elif isinstance(value, bytes):
                literals[placeholder] = b"E'\\\\x%b'" % value.hex().encode()
            else:
                literals[placeholder] = b"'%b'" % str(value).encode()
        return (self._call if vars(raw)[STATE] is PREPARED else self._text) % literals


def may_send(connection: Any, status: int) -> bool:
    """Return whether this module can send BEGIN or COMMIT without Django's cursors.

    See Note [Where messages go beside Django's cursors].

    For BEGIN, `status` is IDLE. A true result means that psycopg would now send a plain BEGIN, in a transaction that
    Django commits. For COMMIT, `status` is IN_TRANSACTION. A true result means that the end of the current `atomic()`
    would send only COMMIT, unless the connection needs a rollback.
    """
    raw = connection.connection
    return (
        psycopg is not None
        and type(raw) is psycopg.Connection
        and raw.pgconn.transaction_status == status
        and connection.in_atomic_block
        and connection.commit_on_exit
        and not connection.savepoint_ids
        and not connection.execute_wrappers
        and not connection.queries_logged
        and raw.autocommit is False
        and (raw.isolation_level, raw.read_only, raw.deferrable) == (None, None, None)
        and raw.pgconn.parameter_status(b"client_encoding") == b"UTF8"
        and vars(connection).keys().isdisjoint(REPLACEABLE)
        and (vars(raw).get(STATE) or _first_state(connection, raw)) is not BY_CURSOR
    )


def _first_state(connection: Any, raw: Any) -> str:
    kind = type(connection)
    methods = [getattr(kind, name) for name in REPLACEABLE]
    methods += [CursorWrapper.execute, CursorWrapper._execute_with_wrappers, CursorWrapper._execute]  # type: ignore[attr-defined]
    if kind.__module__ not in WRAPPERS or raw.cursor_factory is not Cursor or not all(map(_is_original, methods)):
        state = BY_CURSOR
    else:
        # If `prepare_threshold` is set, psycopg deallocates all prepared statements after every ROLLBACK.
        state = NEW if raw.prepare_threshold is None else TEXT
    setattr(raw, STATE, state)
    return state


def _is_original(method: Any) -> bool:
    """Return whether the method is Django's own method.

    The function compares the file of the code, because tools that replace a method also copy its name and its module.
    """
    own = str(Path(django.__file__).parent)
    return isinstance(method, FunctionType) and method.__code__.co_filename.startswith(own)


def begin(connection: Any, claim: Statement, others: Sequence[Statement], values: Values) -> Any:
    """Begin the transaction in the same message as the claim, and return the result of the claim.

    others: the statements that the connection prepares together with the claim.
    """
    raw = connection.connection
    state, preparation = vars(raw)[STATE], b""
    if state is USED:
        # The claim is prepared last. So if a connection has prepared the claim, it has prepared the other statements,
        # too.
        preparation = b"".join(statement.preparation for statement in (*others, claim))
        setattr(raw, STATE, PREPARED)
    try:
        result = _send(connection, b"BEGIN; " + preparation + claim.filled(raw, values))
    except BaseException:
        setattr(raw, STATE, state)
        raise
    if state is NEW:
        setattr(raw, STATE, USED)
    return result


def end_and_read(connection: Any, read: Statement, values: Values) -> Any:
    """Commit the current transaction, read in a new transaction, and return the result of the read."""
    return _send(connection, b"COMMIT; " + read.filled(connection.connection, values))


def end_with(connection: Any, last: Statement, values: Values) -> None:
    """Send this statement and COMMIT in one message.

    At its end, `atomic()` then finds no transaction to commit, and runs the `on_commit` hooks.
    """
    raw, body = connection.connection, values.get("body")
    if body is not None and len(body) > LARGE:
        # psycopg's own cursor sends bytes as a binary parameter. A message with a binary parameter takes only one
        # statement, so `atomic()` sends the COMMIT.
        with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
            cursor.execute(last.text, values)
    else:
        _send(connection, last.filled(raw, values) + b"; COMMIT")


def row_of(result: Any, types: Sequence[Any]) -> list[Any]:
    """Return the first row of a result. Each column arrives as text, and numbers stay text."""
    row: list[Any] = []
    for column, kind in enumerate(types):
        value = result.get_value(0, column)
        if value is None:
            row.append(None)
        elif kind is bytes:
            row.append(pq.Escaping().unescape_bytea(value))
        else:
            row.append(value == b"t" if kind is bool else value.decode())
    return row


def roll_back(connection: Any, error: DatabaseError) -> bool:
    """Undo BEGIN if the error says that a prepared statement is lost. Return whether the claim should be sent again."""
    raw = connection.connection
    if getattr(error.__cause__, "sqlstate", None) not in LOST or vars(raw)[STATE] not in (USED, PREPARED):
        return False
    with connection.wrap_database_errors:
        raw.rollback()
    setattr(raw, STATE, TEXT)
    return True


def _send(connection: Any, message: bytes) -> Any:
    """Send one message, and return its last result. psycopg's errors are raised as Django's errors."""
    raw = connection.connection
    with connection.wrap_database_errors, raw.lock:
        if _in_gevent():
            raw.pgconn.send_query(message)
            result = raw.wait(generators.execute(raw.pgconn))[-1]
        else:
            result = raw.pgconn.exec_(message)
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            error = errors.error_from_result(result, "utf-8")
            # An error without an SQLSTATE comes from libpq itself: the connection is lost.
            raise error if error.sqlstate else psycopg.OperationalError(str(error))
    return result


@cache
def _in_gevent() -> bool:
    """Return whether gevent has patched this process. If libpq waited in gevent, libpq would block all greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("select"))
