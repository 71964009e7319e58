"""Transactions that must really commit when they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, transaction

from ...exceptions import IdempotencyConfigurationError
from ..stores import Store


@contextmanager
def durable_transaction(store: Store, what: str) -> Iterator[None]:
    """A transaction that commits when the block ends.

    Args:
        what: the subject of the error message, such as "operation.call('charge')".

    Raises:
        IdempotencyConfigurationError: inside another transaction of the store's alias. The transaction that a
            `TestCase` opens around each test is allowed.
    """
    _refuse_transaction(store, what)
    with transaction.atomic(using=store.alias, durable=True):
        yield


@contextmanager
def durable_step(store: Store, what: str) -> Iterator[None]:
    """A step of the store that is committed when the block ends, without a BEGIN and a COMMIT around it.

    A single statement commits by itself. A step of several statements opens a transaction in the store.

    Args:
        what: as for `durable_transaction`.

    Raises:
        IdempotencyConfigurationError: as for `durable_transaction`.
    """
    if store.connection.in_atomic_block:
        with durable_transaction(store, what):  # inside a TestCase: a savepoint
            yield
        return
    _refuse_transaction(store, what)
    try:
        yield
    except Error:
        # `atomic()` would have dropped a broken connection. A worker that lives long has no other moment for that.
        if store.connection.connection is not None and not store.connection.is_usable():
            store.connection.close()
        raise


def reconnecting_once(store: Store, write: Callable[[], None]) -> None:
    """Run `write`. If the database fails, run it again on a new connection.

    For writes that must not be lost: the server may have closed a connection that lay idle during a long call.

    Args:
        write: must be safe to run twice.
    """
    try:
        write()
    except Error:
        if store.connection.in_atomic_block:
            raise  # inside a TestCase there is no other connection
        store.connection.close()
        write()


def _refuse_transaction(store: Store, what: str) -> None:
    connection = store.connection
    if connection.in_atomic_block:
        blocks: Any = connection.atomic_blocks
        if blocks and blocks[-1]._from_testcase:
            return
    elif connection.get_autocommit() and not store.has_begun(connection):
        return
    raise IdempotencyConfigurationError(
        f"{what} was reached inside a transaction of database {store.alias!r}. Leased mode commits step by step, so "
        "that a crash leaves a trace of what was called. Remove the atomic(), set_autocommit(False) or raw BEGIN. "
        "Under ATOMIC_REQUESTS put @idempotent on the view function or on `dispatch`, use IdempotencyMixin, or add "
        "@transaction.non_atomic_requests."
    )
