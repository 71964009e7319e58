"""`flush`, which empties the tables after each test that commits. This one keeps content types and permissions.

Django's own deletes them and makes them again. That took longer than most of the tests. So did a TRUNCATE of all:
PostgreSQL makes new files for each one and for its indexes. Here only those with rows are truncated.
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
        tables = set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - KEPT
        by_truncate = connection.vendor == "postgresql"
        statements = connection.ops.sql_flush(
            no_style(),
            with_rows(connection, sorted(tables)) if by_truncate else sorted(tables),
            reset_sequences=options.get("reset_sequences", True),
            allow_cascade=by_truncate,  # to tables without rows
        )
        connection.ops.execute_sql_flush(statements)


def with_rows(connection: Any, tables: list[str]) -> list[str]:
    looks = (f"SELECT '{table}' WHERE EXISTS (SELECT FROM {connection.ops.quote_name(table)})" for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(looks), [])
        return [table for (table,) in cursor.fetchall()]
