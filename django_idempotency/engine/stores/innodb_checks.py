"""Whether MariaDB or MySQL is set up so that a claim and the business write can commit, or roll back, together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning

from ...models import IdempotencyKey, IdempotencyStep

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

OWN = (IdempotencyKey._meta.db_table, IdempotencyStep._meta.db_table)
ENGINE = "InnoDB"
"""The storage engine whose locks the store relies on."""
DEFAULT_ENGINE = "SELECT @@default_storage_engine"
ISOLATION = "SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
"""Of the session, so after OPTIONS and init_command. MariaDB 11.1 has renamed tx_isolation."""
TABLES = (
    "SELECT tables.table_name, tables.engine, engines.transactions = 'YES' FROM information_schema.tables AS tables "
    "JOIN information_schema.engines AS engines ON engines.engine = tables.engine "
    "WHERE tables.table_schema = DATABASE()"
)
"""Name and engine of each table of the database, and whether the engine has transactions."""


def check_engines(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """Check the storage engines of the tables. Sends two queries."""
    ((default,),) = _rows(connection, DEFAULT_ENGINE)
    tables = _rows(connection, TABLES)
    engines = {table: engine for table, engine, _ in tables}
    for table in OWN:
        # `migrate` creates a missing table in the default engine. This check runs before it.
        if (engine := engines.get(table, default)) != ENGINE:
            yield _own_table(connection.alias, table, engine)
    known = set(connection.introspection.django_table_names()).difference(OWN)
    without = sorted(table for table, _, transactional in tables if table in known and not transactional)
    if without:
        yield _other_tables(connection.alias, without)


def check_isolation(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """Check the isolation level of MariaDB. Sends one query."""
    if "SERIALIZABLE" in dict(_rows(connection, ISOLATION)).values():
        yield _serializable(connection.alias)


def _serializable(alias: str) -> CheckMessage:
    return Error(
        f"database {alias!r} is MariaDB with the isolation level SERIALIZABLE, under which every read locks: new keys "
        "conflict with each other, and duplicates wait for the first request without `wait`.",
        hint=f"Set DATABASES[{alias!r}]['OPTIONS']['isolation_level'] = 'read committed', Django's default.",
        id="django_idempotency.E010",
    )


def _own_table(alias: str, table: str, engine: str) -> CheckMessage:
    return Error(
        f"database {alias!r} keeps table {table!r} in the storage engine {engine!r}. A claim there is not rolled back "
        f"when its view fails, and the key stays in progress for ever. The locks of keys are those of {ENGINE}.",
        hint=f"Set default_storage_engine = {ENGINE} in the server's settings. If the table exists, run: "
        f"ALTER TABLE {table} ENGINE = {ENGINE}",
        id="django_idempotency.E009",
    )


def _other_tables(alias: str, tables: list[str]) -> CheckMessage:
    return Warning(
        f"database {alias!r} keeps {', '.join(tables)} in a storage engine without transactions. What a protected view "
        "writes there stays when the view fails, and a retry writes again.",
        hint=f"For each table that a protected view writes to, run: ALTER TABLE … ENGINE = {ENGINE}",
        id="django_idempotency.W006",
    )


def _rows(connection: BaseDatabaseWrapper, sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
