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
PLAIN = "a plain table beside distributed tables"
PLACE = f"""
SELECT own.name, citus.citus_table_type,
    EXISTS (SELECT 1 FROM citus_tables WHERE citus_table_type <> 'local'),
    EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = own.id AND tgname = '{TRIGGER}' AND tgenabled <> 'D')
FROM (SELECT name, to_regclass(quote_ident(name)) AS id FROM unnest(%s::text[]) AS name) AS own
LEFT JOIN citus_tables AS citus ON citus.table_name = own.id WHERE own.id IS NOT NULL ORDER BY name
"""
"""Of each own table that exists: how Citus keeps it, whether there are distributed tables, and whether the trigger is
there. Parameter: the names."""


def check_distribution(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """Check how the tables are distributed. Sends one query."""
    with connection.cursor() as cursor:
        cursor.execute(PLACE, [list(OWN)])
        for table, kind, beside_distributed, has_trigger in cursor.fetchall():
            if kind is None and beside_distributed and not has_trigger:
                yield _misplaced(connection.alias, table, PLAIN)
            elif kind not in {None, "schema"}:
                yield _misplaced(connection.alias, table, f"of the kind {kind!r}")


def _misplaced(alias: str, table: str, kind: str) -> CheckMessage:
    return Error(
        f"database {alias!r} is Citus, and its table {table!r} is {kind}. If a node fails between two commits, an "
        "order can be there without its key, and a retry makes a second order.",
        hint="Give each tenant a distributed schema with the tables of the keys in it. Or keep the keys in plain "
        "tables on the coordinator, and run docs/citus_two_phase.sql there.",
        id="django_idempotency.E014",
    )
