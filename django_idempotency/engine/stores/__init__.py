"""A store reads and writes the idempotency keys of one database alias.

Each kind of database has its own store class. All store classes are subclasses of `Store`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connections, router
from django.utils.module_loading import import_string

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..conf import Options, resolve
from .store import RunningTransaction, Store

__all__ = ["RunningTransaction", "Store", "alias_for", "alias_of", "store_for"]

_STORES = {
    "PostgreSQL": "postgresql.PostgreSQLStore",
    "Citus": "postgresql.CitusStore",
    "SQLite": "sqlite.SQLiteStore",
    "MariaDB": "innodb.MariaDBStore",
    "MySQL": "innodb.MySQLStore",
}
"""The store class for each kind of database. A key of this dict is Django's name for the kind of database, or the name
of an extension. A store is imported only when it is needed, because a project installs only the drivers of its own
databases.
"""
UNTESTED = ("TiDB", "Vitess")
"""Databases that use MySQL's protocol and have their own name in their version text. They do not have InnoDB's locks.
"""


def alias_of(options: Options) -> str:
    """Return the alias of the database in which the package stores the keys.

    If the option `using` is None, the project's database routers choose the alias.
    """
    return options.using or router.db_for_write(IdempotencyKey)


def alias_for(using: str | None) -> str:
    """Return the alias of the database that has the keys.

    The argument `using` is this alias or None. If the argument is None, the function finds the alias in which the
    project stores keys by default.
    """
    return using or alias_of(resolve())


@cache  # not lru_cache, which forgets the stores of a project with more than 128 aliases
def store_for(alias: str) -> Store:
    """Return the store of a database alias.

    The first call for an alias can send a query, for example to find out whether the database has the extension Citus.

    Raises `IdempotencyConfigurationError` if the alias is unknown, or if no store class supports the database.
    """
    if alias not in connections:
        raise IdempotencyConfigurationError(
            f"idempotency keys should be kept in database {alias!r}, which does not exist. Known are: "
            f"{', '.join(connections)}. Correct the option `using`, or the db_for_write() of DATABASE_ROUTERS."
        )
    connection = connections[alias]
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
    # In Django, the databases TiDB and Vitess have the name "MySQL". So this function looks for the words "TiDB" and
    # "Vitess" in the version text of the server. Django itself recognises MariaDB, so MariaDB's version text is not
    # needed.
    version = connection.mysql_server_info.lower() if name == "MySQL" else ""
    return next((name for name in UNTESTED if name.lower() in version), name)


def _is_citus(connection: Any) -> bool:
    """Return whether the database has the extension Citus.

    The query uses the driver's own cursor, so `assertNumQueries` in a test of the project does not count this query.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, connection.connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'citus'")
        return cursor.fetchone() is not None
