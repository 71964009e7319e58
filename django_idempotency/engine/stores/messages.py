"""Sending several SQL statements to PostgreSQL in one message, bypassing Django's cursors.

Django sends BEGIN and COMMIT as separate messages, and waits for each reply. Here, BEGIN is sent with the claim,
and COMMIT with the view's result, so a protected view usually sends the same number of messages as an unprotected view
inside `atomic()`. The pgjdbc and Npgsql drivers also send BEGIN together with the statement that follows it. psycopg
asks libpq before each statement whether a transaction is open, so it sends no second BEGIN.

# Note [When this module sends messages]
Tracing tools and multi-tenant packages must see each statement. This module therefore bypasses Django's cursor only if
nothing has been replaced, that is, if the connection objects of Django and psycopg are direct instances of those
packages' own classes, not of subclasses, and if all cursor methods come from Django. In addition, there must be no
execute wrapper and no query log, and the `atomic()` block must be the outermost one, at the default isolation level.

# Note [Prepared statements]
The first claim on a connection is sent as SQL text, because preparing statements saves nothing on a connection that
serves only one request. The message with the second claim also prepares the statements. A pool hands the same psycopg
connection object to several requests, which is why the connection's state, such as "prepared", is kept in an attribute
of that object.

Behind a connection pooler, two releases of this package can encounter each other's prepared statements. Every name
contains a hash of all the statements, so a connection has either all of a release's statements or none of them. If
each name contained only the hash of its own SQL, a release that changed only the completion would keep the claim's
name. It could execute the old release's prepared claim and run the view before finding that its own completion was not
prepared. That request would fail, and so would every retry on the connection.

A prepared statement fails if DISCARD ALL has deleted it, or if another client behind a pooler has taken its name. A
claim that fails this way is rolled back and sent again as SQL text. From then on, everything on that connection is sent
as SQL text.

If a completion's name is missing because the view sent DEALLOCATE ALL, the completion aborts the view's
transaction. It cannot be sent again without running the view again, so nothing is committed and the client gets 503. A
savepoint in the same message would rescue that request, but would cost every other request a second transaction id: a
busy database would have to freeze its tables twice as often.

PostgreSQL replans a prepared statement for each of its first five executions, and then keeps the plan that it makes
for the sixth. If the key table were empty at that moment, the planner would choose a sequential scan, and the statement
would go on scanning the whole table even after it had grown. `enable_seqscan` is therefore off during planning, and is
restored to its previous value before the view runs. PostgreSQL evaluates EXECUTE's arguments in order before it plans
the statement: the second-to-last argument reads `enable_seqscan`, and the last one turns it off. The statement then
restores the value that was read. After `PLANNED` executions, these two arguments are NULL, because changing the setting
and restoring it can take up to a tenth of the claim's time. From then on, unless the schema changes, PostgreSQL makes a
new plan only after an ANALYZE or a VACUUM of the table. Both determine the table's real size, and the next ANALYZE runs
once the table has grown.
"""

from __future__ import annotations

import re
import select
import sys
from functools import cache
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import django
from django.db import DatabaseError, DataError
from django.db.backends.utils import CursorWrapper

from ..conf import get_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .queries import Values

try:
    import psycopg
    from django.db.backends.postgresql.base import Cursor
    from psycopg import errors, generators, pq
except ImportError:  # The project uses psycopg2, or it has no PostgreSQL driver.
    psycopg = None  # type: ignore[assignment]

T = TypeVar("T")
STATE = "_django_idempotency"
"""The attribute of psycopg's connection that holds its `State`. See Note [Prepared statements]."""
LOST = frozenset({"26000", "42P05"})
"""invalid_sql_statement_name and duplicate_prepared_statement."""
IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""libpq's PQTRANS_IDLE, PQTRANS_INTRANS and PQTRANS_INERROR."""
DONE = frozenset({1, 2})
"""libpq's PGRES_COMMAND_OK and PGRES_TUPLES_OK."""
PLAIN = (False, None, None, None)
"""The `autocommit`, `isolation_level`, `read_only` and `deferrable` for which psycopg sends a plain BEGIN."""
LARGE = 64 * 1024
"""The size in bytes above which a body is sent as a binary parameter: long hexadecimal text is slow to parse."""
POLL = getattr(select, "poll", None)  # not on Windows
SOON = 50
"""The time, in milliseconds, within which the server answers a claim that doesn't wait for a lock."""
WRAPPERS = ("django.db.backends.postgresql.base", "django.contrib.gis.db.backends.postgis.base")
"""The modules of Django's own connection classes."""
REPLACEABLE = ("cursor", "_cursor", "_prepare_cursor", "make_cursor", "create_cursor")
"""The methods that debugging tools replace to see each statement."""
PARAMETER = re.compile(r"%\((\w+)\)s")
SEQSCAN_OFF, PLANNED_ALREADY = (
    b"current_setting('enable_seqscan'), set_config('enable_seqscan', 'off', true))",
    b"NULL, NULL)",
)
"""The last arguments of an EXECUTE. See Note [Prepared statements]."""
PLANNED = 10
"""The number of executions after which a prepared statement keeps its plan. PostgreSQL makes that plan at the sixth
execution, but some of the earlier ones may fail."""


class State(NamedTuple):
    """What a connection has sent. It is replaced as a whole, so no exception can leave half of it.

    Attributes:
        name: "by cursor", "new", "text", "used" or "prepared".
        calls: how often each prepared statement has been executed, up to `PLANNED`. None if nothing is prepared.
    """

    name: str
    calls: Mapping[bytes, int] | None = None

    def after(self, call: bytes) -> State:
        """Return the state after an execution of this prepared statement."""
        if self.calls is None or (called := self.calls.get(call, 0)) == PLANNED:
            return self
        return State(self.name, {**self.calls, call: called + 1})


BY_CURSOR, NEW, TEXT, USED, PREPARED = (
    *(State(name) for name in ("by cursor", "new", "text", "used")),
    State("prepared", {}),
)


def statements(**texts: str) -> dict[str, Statement]:
    """Return a store's statements by kind. Their names share one hash."""
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
    """A statement whose SQL text is sent until it has been prepared; after that, only its name and values are sent.

    Args:
        name: the name of the prepared statement.
        text: the SQL, with parameters as `%(name)s`. In a prepared statement, `{seqscan_back}` becomes an additional
            column, which restores `enable_seqscan`.
    """

    def __init__(self, name: str, text: str) -> None:
        self.text = text.format(seqscan_back="")
        names = _parameters(text)
        self._in_order = itemgetter(*names)
        self._placeholders = [name.encode() for name in names]
        self._text = PARAMETER.sub(r"%(\1)b", self.text).encode()
        self.preparation = f"PREPARE {name} AS {_prepared(text)}; ".encode()
        self.call = f"EXECUTE {name}(".encode()

    def filled(self, raw: Any, state: State, values: Values) -> bytes:
        """Return what to send on a connection in this state, with the values as literals."""
        escape, literals = pq.Escaping(raw.pgconn).escape_literal, []
        for value in self._in_order(values):
            if value is None:
                literal = b"NULL"
            elif (kind := type(value)) is int or kind is float:
                literal = b"'%a'" % value
            elif isinstance(value, bytes):
                literal = b"E'\\\\x%b'" % value.hex().encode()
            else:
                text = value if isinstance(value, str) else str(value)
                if "\0" in text:
                    # libpq would cut the text off there.
                    raise DataError("PostgreSQL text cannot contain NUL (0x00) bytes.")
                literal = escape(text.encode())
            literals.append(literal)
        if state.calls is not None:
            literals.append(SEQSCAN_OFF if state.calls.get(self.call, 0) < PLANNED else PLANNED_ALREADY)
            return self.call + b", ".join(literals)
        return self._text % dict(zip(self._placeholders, literals, strict=True))


def may_send(connection: Any, status: int) -> bool:
    """Whether to send messages rather than use Django's cursor. See Note [When this module sends messages].

    Before a BEGIN, `status` is IDLE: psycopg must be configured to send a BEGIN without options, and Django must commit
    at the end. Before a COMMIT, `status` is IN_TRANSACTION: leaving the current `atomic()` block must send COMMIT and
    nothing else. This function does not check whether the connection needs a rollback.
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


def _first_state(connection: Any, raw: Any) -> State:
    kind = type(connection)
    methods = [getattr(kind, name) for name in REPLACEABLE]
    methods += [CursorWrapper.execute, CursorWrapper._execute_with_wrappers, CursorWrapper._execute]  # type: ignore[attr-defined]
    if kind.__module__ not in WRAPPERS or raw.cursor_factory is not Cursor or not all(map(_is_original, methods)):
        state = BY_CURSOR
    else:
        # With a `prepare_threshold`, psycopg drops all prepared statements after every ROLLBACK.
        state = NEW if raw.prepare_threshold is None and get_settings().prepared_statements else TEXT
    setattr(raw, STATE, state)
    return state


def _is_original(method: Any) -> bool:
    """Whether the method's code is in one of Django's files. Replacements usually copy its name and module."""
    own = str(Path(django.__file__).parent)
    return isinstance(method, FunctionType) and method.__code__.co_filename.startswith(own)


def begin(connection: Any, claim: Statement, others: Sequence[Statement], values: Values) -> Any:
    """Send BEGIN and the claim in one message, and return the claim's result.

    The `others` are prepared together with the claim.
    """
    raw = connection.connection
    state, preparation = vars(raw)[STATE], b""
    after = USED if state is NEW else state
    if state is USED:
        # The claim is prepared last, so a connection that has it also has all the others.
        preparation = b"".join(statement.preparation for statement in (*others, claim))
        after = PREPARED
    result = _send(connection, b"BEGIN; " + preparation + claim.filled(raw, after, values))
    setattr(raw, STATE, after.after(claim.call))
    return result


def end_and_lock(connection: Any, number: int) -> bool:
    """Send COMMIT, try to take the advisory lock with this number, and return whether it was free."""
    result = _send(connection, b"COMMIT; SELECT pg_try_advisory_xact_lock(%d)" % number)
    return bool(result.get_value(0, 0) == b"t")


def end_while(connection: Any, work: Callable[[], T]) -> T:
    """Send COMMIT, call `work` while the server processes it, and return the result of `work`."""
    raw = connection.connection
    with connection.wrap_database_errors:
        raw.pgconn.send_query(b"COMMIT")
        try:
            return work()
        finally:
            # Nothing was written, so it doesn't matter how the COMMIT ends.
            raw.wait(generators.execute(raw.pgconn))


def end_with(connection: Any, last: Statement, values: Values) -> None:
    """Send a transaction's last statement and COMMIT in one message.

    The `atomic()` block then finds no transaction to commit, and runs the `on_commit` hooks as usual.
    """
    raw, body = connection.connection, values.get("body")
    if body is not None and len(body) > LARGE:
        # A binary parameter needs psycopg's own cursor and a separate message. Django sends the COMMIT later.
        with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
            cursor.execute(last.text, values)
    else:
        state = vars(raw)[STATE]
        try:
            _send(connection, last.filled(raw, state, values) + b"; COMMIT")
        except DatabaseError as error:
            _go_on_by_text(raw, error)
            raise
        setattr(raw, STATE, state.after(last.call))


def roll_back(connection: Any, error: DatabaseError) -> bool:
    """If the claim's prepared statement can't be used, roll back and return True: the claim must be sent again."""
    raw = connection.connection
    if not _go_on_by_text(raw, error):
        return False
    with connection.wrap_database_errors:
        raw.rollback()
    return True


def _go_on_by_text(raw: Any, error: DatabaseError) -> bool:
    """Switch the connection to SQL text if a prepared statement is lost or its name is taken. Return True if so."""
    if getattr(error.__cause__, "sqlstate", None) not in LOST or vars(raw)[STATE].name not in ("used", "prepared"):
        return False
    setattr(raw, STATE, TEXT)
    return True


def _send(connection: Any, message: bytes) -> Any:
    """Send a message, and return the result of its last statement. psycopg's errors become Django's.

    A claim may have to wait for a migration, and a COMMIT for a standby. During this wait, as with Django's cursor,
    signals are handled, and Ctrl-C also makes the server stop waiting. With libpq's own wait, neither happens, and if a
    pooler closes the connection, only the last error is shown.

    psycopg's lock is not taken: no other thread uses Django's connection, and an exception could leave it locked.
    """
    raw = connection.connection
    with connection.wrap_database_errors:
        if _in_gevent():
            raw.pgconn.send_query(message)
            results = raw.wait(generators.execute(raw.pgconn))
        else:
            results = _attentively(raw, message)
        if results[-1].status not in DONE:
            # A server or pooler first reports why it is closing the connection; libpq then adds its own, vaguer error.
            first = next(result for result in results if result.status not in DONE)
            error = errors.error_from_result(first, "utf-8")
            # An error from libpq itself, such as a lost connection, has no SQLSTATE.
            raise error if error.sqlstate else psycopg.OperationalError(str(error))
    return results[-1]


def _attentively(raw: Any, message: bytes) -> list[Any]:
    """Send a message, and handle signals while waiting for all the results.

    psycopg's own wait takes 20 µs longer than libpq's. If the answer arrives quickly, the wait in this function adds
    only half as much.
    """
    results: list[Any] = []
    pgconn, soon = raw.pgconn, None
    try:
        pgconn.send_query(message)
        if POLL is not None:
            answer = POLL()
            answer.register(pgconn.socket, select.POLLIN)
            soon = answer.poll(SOON)
    # psycopg's `wait` re-raises the exception; after Ctrl-C, it cancels first what may already have been sent.
    except BaseException as error:  # noqa: BLE001
        raw.wait(_raising(error))
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
    """Whether gevent has patched this process. In that case, libpq's own wait would block all greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("select"))
