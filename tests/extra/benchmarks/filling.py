"""A key table of any size, on PostgreSQL."""

from __future__ import annotations

from django.db import connection


def truncate() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_idempotency_idempotencykey, django_idempotency_idempotencystep")


def add(start: int, stop: int, expired: int = 0) -> None:
    """Rows as a small response leaves them, the oldest first, as they are made; the first ones have expired."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO django_idempotency_idempotencykey (
                key_hash, scope_hash, scope, operation, key, fingerprint, status, attempt,
                created_at, updated_at, completed_at, expires_at, status_code, headers, body
            )
            SELECT hashint8extended(n, 1), hashint8extended(n, 2), 'user:auth.User:' || n %% 1000, 'POST orders/',
                gen_random_uuid()::text, sha256(n::text::bytea), 'completed', 1,
                now(), now(), now(),
                now() + (n - %s) * interval '1 ms' + CASE WHEN n <= %s THEN interval '0' ELSE interval '1 day' END,
                201, '[["Content-Type", "application/json"]]', '{"id": 1, "amount": 1000, "currency": "EUR"}'
            FROM generate_series(%s, %s) AS n
            """,
            [expired, expired, start + 1, stop],
        )
        cursor.execute("VACUUM ANALYZE django_idempotency_idempotencykey")
        cursor.execute("CHECKPOINT")  # now, not while something is measured


def fill(expired: int, living: int) -> None:
    truncate()
    add(0, expired + living, expired)
