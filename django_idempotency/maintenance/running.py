"""Atomic mode at work: open transactions that hold keys. No row shows such a key before its COMMIT."""

from __future__ import annotations

from ..engine.stores import alias_for, store_for
from ..engine.stores.running import RunningTransaction


def running_transactions(*, using: str | None = None) -> list[RunningTransaction] | None:
    """Find open transactions that hold keys of atomic mode: the requests that run now.

    Asks PostgreSQL for its locks: one query, and no table is read. A transaction counts if it has written the key table
    and holds an advisory lock. So a transaction of yours with an advisory lock of its own counts too, while a step or a
    cleanup runs in it.

    Args:
        using: database alias; default: the write alias of the key table.

    Returns:
        The transactions, the oldest first. None: this database does not tell. Only PostgreSQL does.

    Raises:
        IdempotencyConfigurationError: for an unknown alias, or a database without a store.
    """
    return store_for(alias_for(using)).running()
