"""Encryption at rest in tests: keys, and what the tables hold as the database gives it."""

from __future__ import annotations

from typing import Any

from django.db import connection

OLD = "T2xkLW9sZC1vbGQtb2xkLW9sZC1vbGQtb2xkLW9sZC4="
NEW = "TmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldy4="
TABLES = ("django_idempotency_idempotencykey", "django_idempotency_idempotencystep")


def everything() -> bytes:
    """Each value of each row of both tables, read by SQL, without the models."""
    found = []
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table}")
            found += [_bytes(value) for row in cursor.fetchall() for value in row]
    return b" ".join(found)


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, (bytes, memoryview)) else str(value).encode()
