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
    connection = store.connection
    if connection.in_atomic_block:
        blocks: Any = connection.atomic_blocks
        refused = not (blocks and blocks[-1]._from_testcase)
    else:
        refused = not connection.get_autocommit() or store.has_begun(connection)
    if refused:
        raise IdempotencyConfigurationError(
            f"{what} was reached inside a transaction of database {store.alias!r}. Leased mode commits step by step, "
            "so that a crash leaves a trace of what was called. Remove the atomic(), set_autocommit(False) or raw "
            "BEGIN. Under ATOMIC_REQUESTS put @idempotent on the view function or on `dispatch`, use IdempotencyMixin, "
            "or add @transaction.non_atomic_requests."
        )
    with transaction.atomic(using=store.alias, durable=True):
        yield


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
