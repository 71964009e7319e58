"""What must be true after each strike. Each check yields what is wrong, in a few words."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

from asgiref.sync import AsyncToSync
from django.db import connection

from tests.interrupts.strikes import books
from tests.interrupts.strikes.engine import Run

Check = Callable[[], Iterator[str]]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stacks_and_hooks() -> Iterator[str]:
    """Django believes that no transaction is open, and keeps nothing for later."""
    for name in (
        *("in_atomic_block", "atomic_blocks", "savepoint_ids", "needs_rollback", "closed_in_transaction"),
        *("run_on_commit", "run_commit_hooks_on_set_autocommit_on", "execute_wrappers"),
    ):
        if getattr(connection, name):
            yield f"Django: {name} is left"
    if connection.connection is not None and not connection.autocommit:
        yield "Django: autocommit is off"


def driver() -> Iterator[str]:
    """The driver has no transaction open, and nobody holds its lock."""
    raw = connection.connection
    if raw is not None:
        yield from _DRIVERS[connection.vendor](raw)


def _sqlite(raw: Any) -> Iterator[str]:
    if raw.in_transaction:
        yield "driver: in a transaction"


def _mysql(raw: Any) -> Iterator[str]:
    # MySQL doesn't say whether a transaction is open; the second connection sees that.
    is_open = "@@in_transaction" if connection.mysql_is_mariadb else "0"
    with raw.cursor() as cursor:
        cursor.execute(f"SELECT {is_open}, @@SESSION.lock_wait_timeout <> @@GLOBAL.lock_wait_timeout")
        in_a_transaction, limited = cursor.fetchone()
    if in_a_transaction:
        yield "driver: in a transaction"
    if limited:
        yield "driver: the limits of a read are left"


def _postgresql(raw: Any) -> Iterator[str]:
    if raw.closed:
        return
    if raw.info.transaction_status:
        yield f"driver: {raw.info.transaction_status!r}"
    if not raw.autocommit:
        yield "driver: autocommit is off"
    if hasattr(raw, "lock") and raw.lock.locked():
        yield "driver: its lock is held"


_DRIVERS = {"sqlite": _sqlite, "mysql": _mysql, "postgresql": _postgresql}


def server() -> Iterator[str]:
    """No lock and no transaction is left on the server."""
    yield from books.left_on_the_server()


class Surroundings:
    """Context variables, asgiref's executors and handlers of signals are what they were."""

    def __init__(self) -> None:
        self.handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.variables = dict(copy_context())

    def __call__(self) -> Iterator[str]:
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
                yield f"a handler of {number.name} is left"
        for variable, value in list(copy_context().items()):
            # asgiref keeps its storages there; its executors are looked at below.
            if not variable.name.startswith("asgiref") and self.variables.get(variable) is not value:
                yield from self._changed(variable, value)
        if getattr(AsyncToSync.executors, "current", None) is not None:
            AsyncToSync.executors.current = None
            yield "asgiref: executors.current is left"

    def _changed(self, variable: ContextVar[Any], value: Any) -> Iterator[str]:
        """A variable that has its default value again counts as unchanged."""
        missing = object()
        before = self.variables.get(variable, missing)
        if before is missing:
            self.variables[variable] = value
            if not _is_empty(value):
                yield f"context: {variable.name} is {value!r:.60}"
        elif before != value:
            variable.set(before)
            yield f"context: {variable.name} is {value!r:.60}"


def _is_empty(value: Any) -> bool:
    return not value or (isinstance(value, tuple) and not any(value))


def arrived(run: Run) -> Iterator[str]:
    """Whoever runs the work gets what struck it: as itself, or as the cause of another error."""
    if run.struck_by is None or run.error is run.struck_by:
        return
    chain, error = [], run.error
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    if run.struck_by not in chain:
        yield f"the strike was swallowed: {'answered' if run.error is None else type(run.error).__name__}"
