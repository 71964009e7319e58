"""How PostgreSQL reads the tables: for tests that no query reads a whole one."""

from __future__ import annotations

from django.db import connection


def empty_tables() -> None:
    """New files for the tables, until the test's transaction is rolled back.

    The old files still have the rows and index entries that earlier tests have rolled back. A plan would count them.
    """
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_idempotency_idempotencystep, django_idempotency_idempotencykey")


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
