"""Chooses the store that reads and writes a database alias's keys."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from django.db import connections
from django.utils.module_loading import import_string

from ...exceptions import IdempotencyConfigurationError
from ..conf import resolve
from .connecting import opened, without_held_locks
from .store import RunningTransaction, Store

__all__ = ["RunningTransaction", "Store", "alias_for", "store_for"]

_STORES = {
    "PostgreSQL": "postgresql.PostgreSQLStore",
    "Citus": "postgresql.CitusStore",
    "SQLite": "sqlite.SQLiteStore",
    "MariaDB": "innodb.MariaDBStore",
    "MySQL": "innodb.MySQLStore",
}
"""The classes of the stores, by Django's name for the database or by the name of an extension. A store is imported only
when it is needed, because a project installs only the drivers for its own databases."""
UNTESTED = ("TiDB", "Vitess")
"""Databases that speak MySQL's protocol but lack InnoDB's locks. Their names appear in the version string."""


def alias_for(using: str | None) -> str:
    """Return `using`, or the alias of the database in which the project stores keys by default."""
    return using or cast(str, resolve().runner.alias())


def store_for(alias: str) -> Store:
    """Return the store for a database alias. The first call may ask the database whether it has the Citus extension.

    Every use of a database begins with this function, so it also removes locks that an exception has left held.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or no store supports its database.
    """
    store = _store(alias)
    without_held_locks(connections[alias])
    return store


@cache  # not lru_cache, which would forget stores in a project with more than 128 aliases
def _store(alias: str) -> Store:
    if alias not in connections:
        raise IdempotencyConfigurationError(
            f"idempotency keys should be kept in database {alias!r}, which does not exist. Known are: "
            f"{', '.join(connections)}. Correct the option `using`, or the db_for_write() of DATABASE_ROUTERS."
        )
    connection = connections[alias]
    without_held_locks(connection)
    name = _database(connection)
    if name not in _STORES:
        raise IdempotencyConfigurationError(
            f"database {alias!r} is {name} (ENGINE {connection.settings_dict['ENGINE']!r}), "
            "for which django-idempotency has no store. Use PostgreSQL, MySQL, MariaDB or SQLite."
        )
    store: type[Store] = import_string(f"{__name__}.{_STORES[name]}")
    return store(alias)


def _database(connection: Any) -> str:
    name = str(connection.display_name)
    if name == "PostgreSQL" and _is_citus(connection):
        return "Citus"
    # Django identifies TiDB and Vitess as MySQL, but can tell MariaDB from MySQL.
    version = connection.mysql_server_info.lower() if name == "MySQL" else ""
    return next((name for name in UNTESTED if name.lower() in version), name)


def _is_citus(connection: Any) -> bool:
    """Whether the Citus extension is installed.

    The query is sent by the driver's own cursor, so that `assertNumQueries` does not count it.
    """
    opened(connection)
    with connection.wrap_database_errors, connection.connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'citus'")
        return cursor.fetchone() is not None
