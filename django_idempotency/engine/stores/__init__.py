"""Where keys are stored: one store for each kind of database, behind one contract."""

from __future__ import annotations

from functools import lru_cache

from django.db import connections, router

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey
from .mariadb import MariaDBStore
from .postgresql import PostgreSQLStore
from .sqlite import SQLiteStore
from .store import Store

__all__ = ["Store", "alias_for", "store_for"]

_STORES: dict[str, type[Store]] = {store.vendor: store for store in (PostgreSQLStore, SQLiteStore, MariaDBStore)}


def alias_for(using: str | None) -> str:
    """The database alias of the key table: `using`, or the alias to which the project's routers write the table."""
    return using or router.db_for_write(IdempotencyKey)


@lru_cache
def store_for(alias: str) -> Store:
    """The store of a database alias.

    Raises `IdempotencyConfigurationError` for an unknown alias, and for a database without a store.
    """
    if alias not in connections:
        raise IdempotencyConfigurationError(
            f"idempotency keys should be kept in database {alias!r}, which does not exist. Known are: "
            f"{', '.join(connections)}. Correct the option `using`, or the db_for_write() of DATABASE_ROUTERS."
        )
    connection = connections[alias]
    store = _STORES.get(connection.vendor)
    if store is None or (store is MariaDBStore and not connection.mysql_is_mariadb):  # type: ignore[attr-defined]
        raise IdempotencyConfigurationError(
            f"database {alias!r} is {connection.display_name} (ENGINE {connection.settings_dict['ENGINE']!r}), "
            "for which django-idempotency has no store. Use PostgreSQL, MariaDB or SQLite."
        )
    return store(alias)
