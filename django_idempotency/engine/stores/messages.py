"""PostgreSQL: the statements of a usual request, beside Django's cursors, in as few messages as the bare view takes.

Django sends BEGIN and COMMIT alone and waits for each answer. Here they travel with the claim and with the result, as
pgjdbc and Npgsql send them, and without the work of a cursor. psycopg asks libpq before each statement whether a
transaction is open. So psycopg needs no word about a BEGIN that it has not sent.

# Note [Where messages go beside Django's cursors]
Only where nothing is promised about each statement: Django's own class of connections and psycopg's, with no method
replaced; no execute wrapper and no query log; the outermost `atomic()` block, in the default isolation. Everywhere else
the same statements go by Django's cursor: packages for tenants and tracers meet each of them.

# Note [Prepared statements]
The first claim of a connection is sent as text: a connection for one request would not earn a preparation. The second
one prepares the statements by name, in the same message. Each name has a hash of its text, so that releases do not meet
behind a pooler. What is known about a connection hangs on psycopg's connection, because a pool hands that on.

A statement may be gone (DISCARD ALL), be there already (another client behind a pooler), or have another result since a
migration. A claim with such an error is rolled back and sent as text, and so is everything on this connection from then
on. It is never repaired at the completion, where the view has run: that request fails, and nothing of it is committed.

A plan that was made while the table was empty reads the whole table, for as long as the connection lives. So prepared
statements are planned with `enable_seqscan` off. They switch it on again themselves: the view must not notice.
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
"""The attribute of psycopg's connection with one of these. See Note [Prepared statements]."""
BY_CURSOR, NEW, TEXT, USED, PREPARED = "by cursor", "new", "text", "used", "prepared"
LOST = frozenset({"26000", "42P05", "0A000"})
"""invalid_sql_statement_name, duplicate_prepared_statement, feature_not_supported (another result than was planned)"""
IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""libpq's PQTRANS_IDLE, PQTRANS_INTRANS and PQTRANS_INERROR"""
LARGE = 64 * 1024
"""Bytes of a body that travels as a binary parameter: as hexadecimal text it would go through the server's parser."""
WRAPPERS = ("django.db.backends.postgresql.base", "django.contrib.gis.db.backends.postgis.base")
"""The modules of Django's own connections."""
REPLACEABLE = ("cursor", "_cursor", "_prepare_cursor", "make_cursor", "create_cursor")
"""Methods by which tools for debugging meet each statement."""
PARAMETER = re.compile(r"%\((\w+)\)s")


class Statement:
    """One of the statements.

    text: has parameters as `%(name)s`, and `{seqscan_on}` where its result takes one more column.
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
        """The statement as it is sent on this connection. One loop: each request fills two of them."""
        escape, literals = pq.Escaping(raw.pgconn).escape_literal, {}
        for name, placeholder in self._placeholders:
            value = values[name]
            if value is None:
                literals[placeholder] = b"NULL"
            elif isinstance(value, str):
                if "\0" in value:
                    # libpq would cut the text off there.
                    raise DataError("PostgreSQL text cannot contain NUL (0x00) bytes.")
                literals[placeholder] = escape(value.encode())
            elif isinstance(value, bytes):
                literals[placeholder] = b"E'\\\\x%b'" % value.hex().encode()
            else:
                literals[placeholder] = b"'%b'" % str(value).encode()
        return (self._call if vars(raw)[STATE] is PREPARED else self._text) % literals


def may_send(connection: Any, status: int) -> bool:
    """Whether BEGIN or COMMIT may be sent beside Django's cursors. See the Note above.

    status: IDLE: psycopg would send a plain BEGIN next, in a transaction that Django commits. IN_TRANSACTION: the end
        of the current `atomic()` would send COMMIT, and nothing else, unless the connection needs a rollback.
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
        # With a threshold, psycopg deallocates all prepared statements after any ROLLBACK.
        state = NEW if raw.prepare_threshold is None else TEXT
    setattr(raw, STATE, state)
    return state


def _is_original(method: Any) -> bool:
    """Whether the method is Django's own: tools replace methods of classes, and copy their names and modules."""
    own = str(Path(django.__file__).parent)
    return isinstance(method, FunctionType) and method.__code__.co_filename.startswith(own)


def begin(connection: Any, claim: Statement, others: Sequence[Statement], values: Values) -> Any:
    """Begin the transaction with the claim: its result.

    others: what the connection prepares together with the claim.
    """
    raw = connection.connection
    state, preparation = vars(raw)[STATE], b""
    if state is USED:
        # The claim last: a connection that knows the claim knows the others.
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
    """Commit, then read in a transaction of its own: the result of the read."""
    return _send(connection, b"COMMIT; " + read.filled(connection.connection, values))


def end_with(connection: Any, last: Statement, values: Values) -> None:
    """Commit with this statement. `atomic()` then finds no transaction to commit, and runs the `on_commit` hooks."""
    raw, body = connection.connection, values.get("body")
    if body is not None and len(body) > LARGE:
        # psycopg's own cursor sends bytes as they are. `atomic()` commits: this message takes one statement only.
        with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
            cursor.execute(last.text, values)
    else:
        _send(connection, last.filled(raw, values) + b"; COMMIT")


def row_of(result: Any, types: Sequence[Any]) -> list[Any]:
    """The first row, whose columns come as text. Numbers stay text."""
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
    """Undo the BEGIN if the error says that a prepared statement is lost: whether the claim can be sent again."""
    raw = connection.connection
    if getattr(error.__cause__, "sqlstate", None) not in LOST or vars(raw)[STATE] not in (USED, PREPARED):
        return False
    with connection.wrap_database_errors:
        raw.rollback()
    setattr(raw, STATE, TEXT)
    return True


def _send(connection: Any, message: bytes) -> Any:
    """Send one message, and return the last of its results. Raises Django's errors from psycopg's."""
    raw = connection.connection
    with connection.wrap_database_errors, raw.lock:
        if _in_gevent():
            raw.pgconn.send_query(message)
            result = raw.wait(generators.execute(raw.pgconn))[-1]
        else:
            result = raw.pgconn.exec_(message)
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            error = errors.error_from_result(result, "utf-8")
            # Without a state, the error is libpq's own: the connection is lost.
            raise error if error.sqlstate else psycopg.OperationalError(str(error))
    return result


@cache
def _in_gevent() -> bool:
    """Whether gevent has patched this process: libpq's own waiting would block all of its greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("select"))
