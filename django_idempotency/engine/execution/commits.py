"""How is one step of leased work committed?

It has a transaction of its own. If the connection fails, the step is committed on a new one, where that is safe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from django.db import Error, ProgrammingError

from ...exceptions import IdempotencyConfigurationError
from ...limits import limit_in
from ..stores import Store
from ..stores.transactions import atomically
from .claiming import is_alone

T = TypeVar("T")


def committed(store: Store, what: str, write: Callable[[], T], *, twice: bool = False) -> T:
    """Call `write` in a separate transaction, and commit it. In a `TestCase`, the transaction is a savepoint.

    Args:
        what: the subject of the error message, such as "operation.call('charge')".
        twice: repeat the write on a new connection after a database error, because some servers close a connection that
            is idle during a long call. Use it for writes that must not be lost and that are safe to repeat.

    Raises:
        IdempotencyConfigurationError: another transaction is open on the store's alias.
    """
    if twice:
        return reconnecting_once(store, lambda: committed(store, what, write))
    handled = sys.exception()
    if not is_alone(store):
        raise inside_a_transaction(what, store.alias)
    try:
        return atomically(store.alias, write, durable=True)
    except ProgrammingError as error:
        # After an interrupted query, the driver may refuse Django's next command.
        if (limit := limit_in(error, handled)) is not None:
            raise limit from error
        raise


def reconnecting_once(store: Store, write: Callable[[], T]) -> T:
    try:
        return write()
    except Error:
        if store.connection.in_atomic_block:
            raise  # a TestCase's transaction lives on this connection
        store.connection.close()
        return write()


def inside_a_transaction(what: str, alias: str) -> IdempotencyConfigurationError:
    return IdempotencyConfigurationError(
        f"{what} was reached inside a transaction of database {alias!r}. Leased mode commits step by step, "
        "so that a crash leaves a trace of what was called. Remove the atomic(), set_autocommit(False) or raw "
        "BEGIN, which may be a middleware's, such as the RevisionMiddleware of django-reversion. Under "
        "ATOMIC_REQUESTS put @idempotent on the view function or on `dispatch`, use IdempotencyMixin, or add "
        "@transaction.non_atomic_requests."
    )
