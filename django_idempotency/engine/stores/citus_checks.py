"""Whether Citus keeps the keys where a claim and the business write commit, or roll back, together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Error

from ...models import IdempotencyKey, IdempotencyStep

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

OWN = (IdempotencyKey._meta.db_table, IdempotencyStep._meta.db_table)
TRIGGER = "idempotency_two_phase"
"""The name of the trigger of docs/citus_two_phase.sql, on both tables."""
PLACE = f"""
SELECT own.name, known.logicalrelid IS NOT NULL,
    EXISTS (SELECT 1 FROM pg_dist_schema JOIN pg_class ON relnamespace = schemaid WHERE pg_class.oid = own.id),
    EXISTS (SELECT 1 FROM pg_dist_partition WHERE partmethod <> 'n' OR repmodel <> 's' OR colocationid <> 0),
    EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = own.id AND tgname = '{TRIGGER}' AND tgenabled <> 'D')
FROM (SELECT name, to_regclass(quote_ident(name)) AS id FROM unnest(%s::text[]) AS name) AS own
LEFT JOIN pg_dist_partition AS known ON known.logicalrelid = own.id WHERE own.id IS NOT NULL ORDER BY own.name
"""
"""Of each own table that exists: whether Citus knows it, whether its schema is distributed, whether any table is spread
over the nodes, and whether the trigger is there. Parameter: the names. Not by the view `citus_tables`: that is not
in the schema of a tenant."""


def check_distribution(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """Check how the tables are distributed. Sends one query."""
    with connection.cursor() as cursor:
        cursor.execute(PLACE, [list(OWN)])
        for table, known, in_schema, others, has_trigger in cursor.fetchall():
            if known and not in_schema:
                yield _misplaced(connection.alias, table, "known to Citus, but not in a distributed schema")
            elif not known and others and not has_trigger:
                yield _misplaced(connection.alias, table, "a plain table beside distributed tables")


def _misplaced(alias: str, table: str, kind: str) -> CheckMessage:
    return Error(
        f"database {alias!r} is Citus, and its table {table!r} is {kind}. If a node fails between two commits, an "
        "order can be there without its key, and a retry makes a second order.",
        hint="Give each tenant a distributed schema with the tables of the keys in it. Or keep the keys in plain "
        "tables on the coordinator, and run docs/citus_two_phase.sql there.",
        id="django_idempotency.E014",
    )
