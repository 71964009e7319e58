"""On InnoDB each test begins with new tables.

InnoDB purges a deleted row some time later. Until then an INSERT of the same key locks the gap beside that row, and
other new keys in that gap wait.
"""

from __future__ import annotations

import pytest
from django.core.management.color import no_style
from django.db import connection

from django_idempotency.models import IdempotencyKey, IdempotencyStep


@pytest.fixture(autouse=True)
def nothing_to_purge(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("django_db")
    # Other tests have no threads on this database: they run in one transaction, or on a server of their own.
    if connection.vendor == "mysql" and marker is not None and marker.kwargs.get("transaction"):
        request.getfixturevalue("db")
        tables = [model._meta.db_table for model in (IdempotencyStep, IdempotencyKey)]
        # Django's flush deletes the rows; with `reset_sequences` it truncates the tables.
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables, reset_sequences=True))
