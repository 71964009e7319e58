"""SQL of a test's own, on this thread's connection."""

from __future__ import annotations

from typing import Any

from django.db import connection


def ask(sql: str) -> Any:
    """The first row."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()
