"""SQL of a test's own, on this thread's connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

TABLE = "django_idempotency_idempotencykey"
NO_TABLE = (f"ALTER TABLE {TABLE} RENAME TO elsewhere", f"ALTER TABLE elsewhere RENAME TO {TABLE}")


def ask(sql: str) -> Any:
    """The first row."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


@contextmanager
def instead(forwards: str, backwards: str) -> Iterator[None]:
    """Change something for the length of the block, such as with `NO_TABLE`."""
    with connection.cursor() as cursor:
        cursor.execute(forwards)
        try:
            yield
        finally:
            cursor.execute(backwards)
