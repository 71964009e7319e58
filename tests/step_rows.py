"""Steps that a test writes itself, and what the steps of a key come to, counted anew."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import Q
from django.utils import timezone

from django_idempotency.models import IdempotencyKey, IdempotencyStep


def add_step(row: IdempotencyKey, name: str = "charge", kind: str = "call", **fields: Any) -> IdempotencyStep:
    """A step of this key, in doubt unless `finished_at` is given; the row counts it."""
    same = {"key": row, "key_hash": row.key_hash, "scope_hash": row.scope_hash, "name": name, "kind": kind}
    step = IdempotencyStep.objects.using(row._state.db).create(
        **{**same, "attempt": 1, "started_at": timezone.now(), **fields}
    )
    recount(row)
    return step


def counted(row: IdempotencyKey) -> tuple[int, int]:
    """How many steps have no result, and how many calls have ended, by the table of steps."""
    steps = IdempotencyStep.objects.using(row._state.db).filter(
        key=row, key_hash=row.key_hash, scope_hash=row.scope_hash
    )
    return (
        steps.filter(Q(kind="call") | Q(kind="write"), finished_at=None).count(),
        steps.filter(kind="call", finished_at__isnull=False).count(),
    )


def miscounted(using: str = "default") -> dict[tuple[int, int, int], str]:
    """The keys whose row does not say what their steps come to, by the table of steps; empty if all do.

    And failed keys without a `last_error`, which the index of failed keys would leave out.
    """
    connection = connections[using]
    keys, steps = (connection.ops.quote_name(model._meta.db_table) for model in (IdempotencyKey, IdempotencyStep))
    unknown, effects = (connection.ops.quote_name(name) for name in ("unknown", "effects"))
    same = "k.id = s.key_id AND k.key_hash = s.key_hash AND k.scope_hash = s.scope_hash"
    with connection.cursor() as cursor:  # in the database: a test may have 100,000 keys
        cursor.execute(
            f"""
            SELECT k.id, k.key_hash, k.scope_hash, k.{unknown}, k.{effects}, coalesce(open, 0), coalesce(done, 0)
            FROM {keys} k LEFT JOIN (
                SELECT key_id, key_hash, scope_hash,
                    sum(CASE WHEN kind <> 'fetch' AND finished_at IS NULL THEN 1 ELSE 0 END) AS open,
                    sum(CASE WHEN kind = 'call' AND finished_at IS NOT NULL THEN 1 ELSE 0 END) AS done
                FROM {steps} GROUP BY key_id, key_hash, scope_hash
            ) s ON {same}
            WHERE k.{unknown} <> coalesce(open, 0) OR k.{effects} <> coalesce(done, 0)
            UNION ALL
            SELECT s.key_id, s.key_hash, s.scope_hash, NULL, NULL, NULL, NULL FROM {steps} s
            WHERE NOT EXISTS (SELECT 1 FROM {keys} k WHERE {same})
            UNION ALL
            SELECT id, key_hash, scope_hash, NULL, 0, NULL, NULL FROM {keys}
            WHERE status = 'failed' AND last_error IS NULL
            """,
            [],
        )
        return {
            (row[0], row[1], row[2]): f"[{row[3]}, {row[4]}] on the row, [{row[5]}, {row[6]}] steps"
            if row[3] is not None
            else "steps without their key"
            if row[4] is None
            else "failed without a last_error"
            for row in cursor.fetchall()
        }


def recount(row: IdempotencyKey, **changes: Any) -> None:
    """Make these changes of a row whose counts a test has moved. Times are as they were."""
    unknown, effects = counted(row)
    failed = changes.get("status", row.status) == "failed"
    since = timezone.now() if failed and unknown + effects else None
    found = IdempotencyKey.objects.using(row._state.db).filter(key_hash=row.key_hash, scope_hash=row.scope_hash)
    found.update(unknown=unknown, effects=effects, attention_at=since, policy=row.policy or "hold", **changes)
    row.refresh_from_db()
