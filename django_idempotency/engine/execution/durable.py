"""Transactions that must really commit when they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, transaction

from ...exceptions import IdempotencyConfigurationError
from ..stores import Store


def refuse_transaction(store: Store, what: str) -> None:
    """Raise `IdempotencyConfigurationError` inside a transaction of the store's alias, but a `TestCase`'s own."""
    connection = store.connection
    if connection.in_atomic_block:
        blocks: Any = connection.atomic_blocks
        if blocks and blocks[-1]._from_testcase:
            return
    elif connection.get_autocommit():
        return
    raise IdempotencyConfigurationError(
        f"{what} was reached inside a transaction of database {store.alias!r}. Leased mode commits step by step, so "
        "that a crash leaves a trace of what was called. Remove the atomic() or set_autocommit(False) around it; under "
        "ATOMIC_REQUESTS put @idempotent on the view function or on `dispatch`, use IdempotencyMixin, or add "
        "@transaction.non_atomic_requests."
    )


@contextmanager
def own_transaction(store: Store, what: str) -> Iterator[None]:
    """A transaction that commits when the block ends. Raises `IdempotencyConfigurationError` inside another one."""
    refuse_transaction(store, what)
    with transaction.atomic(using=store.alias, durable=True):
        yield


def on_a_fresh_connection_if_need_be(store: Store, write: Callable[[], None]) -> None:
    """Run `write`, and once more on a new connection if the database fails it. It must be safe to run twice.

    For what must not be lost: a connection that lay idle during a long call may have been cut by then.
    """
    try:
        write()
    except Error:
        if store.connection.in_atomic_block:
            raise  # a TestCase's: there is no other connection
        store.connection.close()
        write()
