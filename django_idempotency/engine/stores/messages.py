"""This module sends several SQL statements to PostgreSQL in one message, without Django's cursors.

A protected view usually sends as many messages to the database as an unprotected `atomic()` view. Django sends BEGIN
and COMMIT in two separate messages, and waits for the answer to each message. This module sends BEGIN together with the
claim, and sends COMMIT together with the result of the view. Like this package, the drivers pgjdbc and Npgsql send
BEGIN and the next statement in one message. Before each statement, psycopg asks libpq whether a transaction is open. So
psycopg does not send a second BEGIN after the BEGIN of this module.

# Note [When this module sends messages]
Tracing tools and multi-tenant packages must see each statement. So this module sends no messages if such a tool or
package is active. The connection must be an instance of Django's own class, and not of a subclass. Its psycopg
connection must be an instance of psycopg's own class. All cursor methods must be Django's own methods. The connection
must have no execute wrapper and no query log. The `atomic()` block must be the outermost block, and the isolation level
must be the default level. If a condition in this note is false, Django's cursor sends the statements.

# Note [Prepared statements]
On each connection, this module sends the first claim as SQL text. If a connection is used for only one request,
prepared statements save no time. When a connection sends its second claim, the same message also prepares the
statements. With a connection pool, several requests use the same connection object of psycopg. So this module stores
the state of a connection, for example "prepared", in an attribute of the connection object.

Behind a connection pooler, two releases of this package can meet each other's prepared statements. Every name contains
one hash of all the statements, which means that a connection either has all statements of a release or none of them. If
each name hashed only its own SQL, a release whose completion alone is new would find the claim of the old release, run
the view, and then lack the completion: that request fails, and so does every retry on the connection.

A prepared statement can fail for two reasons. The first reason is that the command DISCARD ALL has deleted the prepared
statement. The second reason is that another client behind a connection pooler already has a prepared statement with the
same name. If the prepared statement of a claim fails, the claim is rolled back and sent again as SQL text. After a
failed prepared statement, the connection sends all statements as SQL text.

A completion whose name is missing, because the view sent DEALLOCATE ALL, aborts the view's transaction. It cannot be
sent again without the view, so nothing is committed and the client gets 503. A savepoint in the same message would save
that request, at the price of a second transaction id for every other request: a busy database would have to freeze its
tables twice as often.

PostgreSQL plans a prepared statement anew for its first five calls, and keeps the plan of the sixth. Had the key table
been empty then, that plan would be a sequential scan, and would go on reading the whole table when it has grown. So
`enable_seqscan` is off while a connection plans, and is what it was before when the view runs: PostgreSQL evaluates the
arguments of EXECUTE one after the other before it plans, the last two read `enable_seqscan` and switch it off, and the
statement restores what was read. After `PLANNED` calls the arguments are NULL, because switching costs as much as a
tenth of the claim. Only ANALYZE and VACUUM of the table have a plan made anew after that. They see its real size, and
the next ANALYZE follows when it has grown.
"""

from __future__ import annotations

import re
import select
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import django
from django.db import DatabaseError, DataError
from django.db.backends.utils import CursorWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .queries import Values

try:
    import psycopg
    from django.db.backends.postgresql.base import Cursor
    from psycopg import errors, generators, pq
except ImportError:  # The project uses psycopg2, or it has no driver for PostgreSQL.
    psycopg = None  # type: ignore[assignment]

T = TypeVar("T")
STATE = "_django_idempotency"
"""The attribute of psycopg's connection that holds one of the following states. See Note [Prepared statements]."""
CALLS = "_django_idempotency_calls"
"""The attribute that counts the calls of each prepared statement."""
BY_CURSOR, NEW, TEXT, USED, PREPARED = "by cursor", "new", "text", "used", "prepared"
LOST = frozenset({"26000", "42P05"})
"""PostgreSQL's error codes invalid_sql_statement_name and duplicate_prepared_statement."""
IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""The numbers of libpq's states PQTRANS_IDLE, PQTRANS_INTRANS and PQTRANS_INERROR."""
DONE = frozenset({1, 2})
"""The numbers of libpq's results PGRES_COMMAND_OK and PGRES_TUPLES_OK."""
PLAIN = (False, None, None, None)
"""With these values of `autocommit`, `isolation_level`, `read_only` and `deferrable`, psycopg sends a plain BEGIN."""
LARGE = 64 * 1024
"""A body with more bytes than this is sent as a binary parameter: the server parses long hexadecimal text slowly."""
SOON = 50
"""Milliseconds in which a claim is answered that waits for no lock."""
WRAPPERS = ("django.db.backends.postgresql.base", "django.contrib.gis.db.backends.postgis.base")
"""The modules with Django's own classes of connections."""
REPLACEABLE = ("cursor", "_cursor", "_prepare_cursor", "make_cursor", "create_cursor")
"""The methods that debugging tools replace in order to see each statement."""
PARAMETER = re.compile(r"%\((\w+)\)s")
SEQSCAN_OFF, PLANNED_ALREADY = (
    b"current_setting('enable_seqscan'), set_config('enable_seqscan', 'off', true))",
    b"NULL, NULL)",
)
"""The last arguments of an EXECUTE. See Note [Prepared statements]."""
PLANNED = 10
"""The calls of a prepared statement after which its plan is kept: the sixth makes it, and some may fail before that."""


def statements(**texts: str) -> dict[str, Statement]:
    """Return the statements of one store, by the part of their names that tells them apart."""
    release = sha256("; ".join(map(_prepared, texts.values())).encode()).hexdigest()[:12]
    return {kind: Statement(f"idempotency_{kind}_{release}", text) for kind, text in texts.items()}


def _prepared(text: str) -> str:
    names = _parameters(text)
    numbered = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    before, off = f"${len(names) + 1}", f"${len(names) + 2}::text"
    restored = f"set_config('enable_seqscan', {before}, true)"
    return numbered.format(seqscan_back=f", CASE WHEN {off} IS NOT NULL THEN {restored} END")


def _parameters(text: str) -> list[str]:
    return list(dict.fromkeys(PARAMETER.findall(text)))


class Statement:
    """As long as a `Statement` is not prepared, the package sends the statement as SQL text. After a `Statement` is
    prepared, the package sends only the name and the values of the statement.

    Args:
        name: the name of the prepared statement.
        text: the SQL, in which parameters are written as `%(name)s`. In a prepared statement, `{seqscan_back}` becomes
            one more column, which restores `enable_seqscan`.
    """

    def __init__(self, name: str, text: str) -> None:
        self.text = text.format(seqscan_back="")
        self._names = _parameters(text)
        self._placeholders = [name.encode() for name in self._names]
        self._text = PARAMETER.sub(r"%(\1)b", self.text).encode()
        self.preparation = f"PREPARE {name} AS {_prepared(text)}; ".encode()
        self._call = f"EXECUTE {name}(".encode()

    def filled(self, raw: Any, values: Values) -> bytes:
        """Return the SQL of the statement for this connection, as bytes. The SQL contains the values as literals."""
        escape, literals = pq.Escaping(raw.pgconn).escape_literal, []
        for name in self._names:
            value = values[name]
            if value is None:
                literals.append(b"NULL")
            elif isinstance(value, str):
                if "\0" in value:
                    # If a text contains NUL, libpq leaves out the NUL and all characters after the NUL.
                    raise DataError("PostgreSQL text cannot contain NUL (0x00) bytes.")
                literals.append(escape(value.encode()))
            elif isinstance(value, bytes):
                literals.append(b"E'\\\\x%b'" % value.hex().encode())
            else:
                literals.append(b"'%b'" % str(value).encode())
        if vars(raw)[STATE] is PREPARED:
            calls = vars(raw).setdefault(CALLS, {})
            calls[self._call] = called = calls.get(self._call, 0) + 1
            literals.append(PLANNED_ALREADY if called > PLANNED else SEQSCAN_OFF)
            return self._call + b", ".join(literals)
        return self._text % dict(zip(self._placeholders, literals, strict=True))


def may_send(connection: Any, status: int) -> bool:
    """Return True if this module can send BEGIN and COMMIT directly, without a Django cursor.

    All conditions are in Note [When this module sends messages].

    Before BEGIN, the caller passes the status IDLE. With the status IDLE, the function returns True only if both of
    these conditions are true: psycopg would send a BEGIN without options, and Django would commit the transaction
    later. A caller that wants to send COMMIT passes the status IN_TRANSACTION. With the status IN_TRANSACTION, the
    function returns True only if the end of the current `atomic()` block would send exactly one statement: COMMIT. The
    function does not check whether the connection needs a rollback.
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
        and (status != IDLE or (raw.autocommit, raw.isolation_level, raw.read_only, raw.deferrable) == PLAIN)
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
        # If `prepare_threshold` is set, psycopg deletes all prepared statements after every ROLLBACK.
        state = NEW if raw.prepare_threshold is None else TEXT
    setattr(raw, STATE, state)
    return state


def _is_original(method: Any) -> bool:
    """Return whether the method is Django's own method. The result is False if a tool has replaced the method.

    The function checks whether the method's code is in a file of Django. This function does not compare the name and
    the module of a method, because a tool that replaces a method of Django usually copies both.
    """
    own = str(Path(django.__file__).parent)
    return isinstance(method, FunctionType) and method.__code__.co_filename.startswith(own)


def begin(connection: Any, claim: Statement, others: Sequence[Statement], values: Values) -> Any:
    """Send BEGIN and the claim in one message, and return the result of the claim.

    Args:
        connection: Django's connection.
        claim: the statement that claims the key.
        others: the statements that the connection prepares together with the claim.
        values: the values of the claim.
    """
    raw = connection.connection
    state, preparation = vars(raw)[STATE], b""
    if state is USED:
        # The message prepares several statements, and the claim is the last of these statements. The claim is always
        # prepared last. So if the claim is prepared on a connection, all other statements are prepared on this
        # connection, too.
        preparation = b"".join(statement.preparation for statement in (*others, claim))
        setattr(raw, STATE, PREPARED)
    try:
        result = _send(connection, b"BEGIN; " + preparation + claim.filled(raw, values), claims=True)
    except BaseException:
        setattr(raw, STATE, state)
        raise
    if state is NEW:
        setattr(raw, STATE, USED)
    return result


def end_and_lock(connection: Any, number: int) -> bool:
    """Send COMMIT. Then try to get the advisory lock with this number. Return True if the lock was free."""
    result = _send(connection, b"COMMIT; SELECT pg_try_advisory_xact_lock(%d)" % number)
    return bool(result.get_value(0, 0) == b"t")


def end_while(connection: Any, work: Callable[[], T]) -> T:
    """Send COMMIT, and call the function `work` while the server commits. Return the result of this function."""
    raw = connection.connection
    with connection.wrap_database_errors, raw.lock:
        raw.pgconn.send_query(b"COMMIT")
        try:
            return work()
        finally:
            # The transaction has written nothing, so this function ignores the result of the COMMIT.
            raw.wait(generators.execute(raw.pgconn))


def end_with(connection: Any, last: Statement, values: Values) -> None:
    """Send the last statement of a transaction and COMMIT in one message.

    After this message, no transaction is open. At the end of the `atomic()` block, Django runs the `on_commit` hooks as
    usual.
    """
    raw, body = connection.connection, values.get("body")
    if body is not None and len(body) > LARGE:
        # psycopg's own cursor sends a large body as a binary parameter. A message with a binary parameter can contain
        # only one statement. So Django sends COMMIT in a separate message, at the end of the `atomic()` block.
        with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
            cursor.execute(last.text, values)
    else:
        try:
            _send(connection, last.filled(raw, values) + b"; COMMIT")
        except DatabaseError as error:
            _go_on_by_text(raw, error)
            raise


def roll_back(connection: Any, error: DatabaseError) -> bool:
    """If the error means that a prepared statement cannot be used, roll the claim back, and return True.

    If this function returns True, the caller sends the claim again.
    """
    raw = connection.connection
    if not _go_on_by_text(raw, error):
        return False
    with connection.wrap_database_errors:
        raw.rollback()
    return True


def _go_on_by_text(raw: Any, error: DatabaseError) -> bool:
    """Return whether a prepared statement is lost or its name taken. Then the connection prepares nothing any more."""
    if getattr(error.__cause__, "sqlstate", None) not in LOST or vars(raw)[STATE] not in (USED, PREPARED):
        return False
    setattr(raw, STATE, TEXT)
    return True


def _send(connection: Any, message: bytes, *, claims: bool = False) -> Any:
    """Send one message, and return the result of the last statement in the message.

    An error of psycopg is raised as an error of Django. A claim can wait for a migration, which is why it is waited for
    as Django's cursor waits: it sees signals, and after a Ctrl-C the server does not go on waiting either. libpq's own
    waiting does neither, and it shows only the last error of a pooler that ends the connection.
    """
    raw = connection.connection
    with connection.wrap_database_errors, raw.lock:
        if _in_gevent():
            raw.pgconn.send_query(message)
            results = raw.wait(generators.execute(raw.pgconn))
        elif claims:
            results = _attentively(raw, message)
        else:
            results = [raw.pgconn.exec_(message)]
        if results[-1].status not in DONE:
            # After the error of a server or pooler that then ends the connection, libpq adds one that says less.
            first = next(result for result in results if result.status not in DONE)
            error = errors.error_from_result(first, "utf-8")
            # If the connection is lost, the error comes from libpq. An error from libpq has no SQLSTATE.
            raise error if error.sqlstate else psycopg.OperationalError(str(error))
    return results[-1]


def _attentively(raw: Any, message: bytes) -> list[Any]:
    """Send one message, and see signals until all results are there.

    psycopg's own waiting costs 20 µs more than libpq's. This costs half of it where the answer comes soon.
    """
    results: list[Any] = []
    pgconn = raw.pgconn
    pgconn.send_query(message)
    if hasattr(select, "poll"):  # not on Windows
        answer = select.poll()
        answer.register(pgconn.socket, select.POLLIN)
        try:
            soon = answer.poll(SOON)
        # psycopg's waiting raises the exception of a signal again, and cancels the statement after a Ctrl-C.
        except BaseException as error:  # noqa: BLE001
            soon = raw.wait(_raising(error))
        if soon:
            pgconn.consume_input()
            while not pgconn.is_busy():
                if (result := pgconn.get_result()) is None:
                    return results
                results.append(result)
    return [*results, *raw.wait(generators.execute(pgconn))]


def _raising(error: BaseException) -> Iterator[int]:
    yield from ()
    raise error


@cache
def _in_gevent() -> bool:
    """Return whether gevent has patched this process.

    In a process that gevent has patched, libpq must not wait for the server, because libpq would block all greenlets.
    """
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("select"))
