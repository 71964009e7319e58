"""`flush`, which empties the tables after each test that commits. This one keeps content types and permissions.

Django's own deletes them and makes them again, which took longer than most of the tests. So did a TRUNCATE: PostgreSQL
makes new files for a table and for each of its indexes, which takes three times as long as to delete some rows.
"""

from __future__ import annotations

from typing import Any

from django.core.management.color import no_style
from django.core.management.commands import flush
from django.db import connections

KEPT = {"auth_permission", "django_content_type"}


class Command(flush.Command):
    def handle(self, **options: Any) -> None:
        connection = connections[options["database"]]
        names = connection.introspection.django_table_names(only_existing=True, include_views=False)
        tables = sorted({*names} - KEPT)
        if connection.vendor == "postgresql":
            statements = deletion([connection.ops.quote_name(table) for table in tables])
        else:
            statements = connection.ops.sql_flush(
                no_style(), tables, reset_sequences=options.get("reset_sequences", True), allow_cascade=False
            )
        connection.ops.execute_sql_flush(statements)


def deletion(tables: list[str]) -> list[str]:
    """The lock waits for transactions that are still at work, as TRUNCATE does: of a worker that was killed."""
    return [
        f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE",
        "; ".join(f"DELETE FROM {table}" for table in tables),
    ]
