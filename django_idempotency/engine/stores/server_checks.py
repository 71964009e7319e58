"""System checks that query the database server: can a claim and its view's writes be committed together?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning

from ...models import IdempotencyKey, IdempotencyStep

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

MODELS = (IdempotencyKey, IdempotencyStep)
OWN = [model._meta.db_table for model in MODELS]
"""The package's own tables."""


CREATE = "Create them as `python manage.py sqlmigrate django_idempotency 0001` shows."
UPGRADE = "The table is from an earlier version. Create nothing by hand: upgrade it as docs/upgrading.md shows."


def check_tables(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """Check the indexes and collations of the package's tables. A rebuilt table may have lost them."""
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
        for meta in (model._meta for model in MODELS if model._meta.db_table in there):
            existing = connection.introspection.get_constraints(cursor, meta.db_table)
            missing = {index.name for index in (*meta.indexes, *meta.constraints)}.difference(existing)
            columns = {column.name for column in connection.introspection.get_table_description(cursor, meta.db_table)}
            if missing:
                yield Warning(
                    f"table {meta.db_table!r} of database {connection.alias!r} lacks {', '.join(sorted(missing))}. "
                    "Without its unique constraint a key could run twice; without an index, look-ups and cleanups read "
                    "the whole table.",
                    hint=CREATE if columns.issuperset(field.column for field in meta.concrete_fields) else UPGRADE,
                    id="django_idempotency.W007",
                )
            if connection.vendor == "mysql":
                yield from _check_collations(connection, meta)


def _check_collations(connection: BaseDatabaseWrapper, meta: Any) -> Iterator[CheckMessage]:
    collations = dict(rows_of(connection, COLLATIONS, [meta.db_table]))
    quoted = connection.ops.quote_name
    for field in meta.concrete_fields:
        collation = field.db_parameters(connection).get("collation")
        if collation and collations.get(field.column, collation) != collation:
            yield Warning(
                f"column {field.column!r} of table {meta.db_table!r} in database {connection.alias!r} has the "
                f"collation {collations[field.column]!r}, under which two different texts may be equal.",
                hint=f"ALTER TABLE {quoted(meta.db_table)} MODIFY {quoted(field.column)} {field.db_type(connection)} "
                f"COLLATE {collation} NOT NULL",
                id="django_idempotency.W008",
            )


COLLATIONS = (
    "SELECT column_name, collation_name FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = %s"
)

# --- MariaDB and MySQL

ENGINE = "InnoDB"
"""The storage engine that has the locks the stores need."""
WITHOUT_TRANSACTIONS = (
    "SELECT tables.table_name FROM information_schema.tables AS tables "
    "JOIN information_schema.engines AS engines ON engines.engine = tables.engine "
    "WHERE tables.table_schema = DATABASE() AND engines.transactions <> 'YES'"
)
"""The tables in a storage engine without transactions."""


def check_engines(connection: Any) -> Iterator[CheckMessage]:
    """Check the storage engines of the package's and the project's tables."""
    alias, introspection = connection.alias, connection.introspection
    with connection.cursor() as cursor:
        # If the table does not exist yet, this is the server's default engine, which `migrate` will use after this
        # check.
        engines = {table: introspection.get_storage_engine(cursor, table) for table in OWN}
    for table, engine in engines.items():
        if engine != ENGINE:
            yield Error(
                f"database {alias!r} keeps table {table!r} in the storage engine {engine!r}. A claim there is not "
                "rolled back when its view fails, and the key stays in progress for ever. Claims rely on the locks of "
                f"{ENGINE}.",
                hint=f"Set default_storage_engine = {ENGINE} in the server's settings. If the table exists, run: "
                f"ALTER TABLE {table} ENGINE = {ENGINE}",
                id="django_idempotency.E009",
            )
    others = set(introspection.django_table_names()).difference(OWN)
    if without := sorted(others.intersection(table for (table,) in rows_of(connection, WITHOUT_TRANSACTIONS))):
        yield Warning(
            f"database {alias!r} keeps {', '.join(without)} in a storage engine without transactions. What a protected "
            "view writes there stays when the view fails, and a retry writes again.",
            hint=f"For each table that a protected view writes to, run: ALTER TABLE … ENGINE = {ENGINE}",
            id="django_idempotency.W006",
        )


# --- Citus

PLACE = """
SELECT own.name, known.logicalrelid IS NOT NULL,
    EXISTS (SELECT 1 FROM pg_dist_schema JOIN pg_class ON relnamespace = schemaid WHERE pg_class.oid = own.id),
    EXISTS (SELECT 1 FROM pg_dist_partition WHERE partmethod <> 'n' OR repmodel <> 's' OR colocationid <> 0),
    EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = own.id AND tgname = 'idempotency_two_phase' AND tgenabled <> 'D')
FROM (SELECT name, to_regclass(quote_ident(name)) AS id FROM unnest(%s::text[]) AS name) AS own
LEFT JOIN pg_dist_partition AS known ON known.logicalrelid = own.id WHERE own.id IS NOT NULL ORDER BY own.name
"""
"""One row for each of the package's tables that exist. The row says whether Citus knows the table, whether its schema
is distributed, whether any table is spread over the nodes, and whether this one has the trigger from
docs/citus_two_phase.sql. The `citus_tables` view is not used, because a tenant's schema would not contain it."""


def check_distribution(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """On Citus, check the placement of the package's tables.

    If a key and its order are on different nodes, the key can be lost although the order is committed, and a retry then
    creates a second order.
    """
    for table, known, in_schema, others, has_trigger in rows_of(connection, PLACE, [OWN]):
        if known and not in_schema:
            kind = "known to Citus, but not in a distributed schema"
        elif not known and others and not has_trigger:
            kind = "a plain table beside distributed tables"
        else:
            continue
        yield Error(
            f"database {connection.alias!r} is Citus, and its table {table!r} is {kind}. If a node fails between two "
            "commits, an order can be stored without its key, and a retry creates a second one.",
            hint="Give each tenant a distributed schema with the tables of the keys in it. Or keep the keys in plain "
            "tables on the coordinator, and run citus_two_phase.sql there, from the folder docs of the source code.",
            id="django_idempotency.E014",
        )


def rows_of(connection: BaseDatabaseWrapper, sql: str, params: Any = ()) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())
