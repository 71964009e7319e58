"""`flush`, which empties the tables after each test that commits. This one keeps content types and permissions.

Django's own deletes them and makes them again. That took longer than most of the tests.
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
        statements = connection.ops.sql_flush(
            no_style(), sorted(tables), reset_sequences=options.get("reset_sequences", True), allow_cascade=False
        )
        connection.ops.execute_sql_flush(statements)
