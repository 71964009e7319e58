"""Who remembers: one store per database, behind one contract."""

from __future__ import annotations

from functools import lru_cache

from django.db import connections

from ..exceptions import IdempotencyConfigurationError
from .base import Claim, Store
from .mariadb import MariaDBStore
from .postgresql import PostgreSQLStore
from .sqlite import SQLiteStore

__all__ = ["Claim", "Store", "store_for"]

_STORES: dict[str, type[Store]] = {store.vendor: store for store in (PostgreSQLStore, SQLiteStore, MariaDBStore)}


@lru_cache
def store_for(alias: str) -> Store:
    """The store of a database alias. Raises `IdempotencyConfigurationError` for a database without one."""
    connection = connections[alias]
    store = _STORES.get(connection.vendor)
    if store is None or (store is MariaDBStore and not connection.mysql_is_mariadb):  # type: ignore[attr-defined]
        raise IdempotencyConfigurationError(
            f"database {alias!r} is {connection.display_name}, for which django-idempotency has no store. "
            "Use PostgreSQL, MariaDB or SQLite."
        )
    return store(alias)
