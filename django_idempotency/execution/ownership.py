"""Transactions that must really commit when they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from ..exceptions import IdempotencyConfigurationError
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
