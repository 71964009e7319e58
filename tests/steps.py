"""Steps that a test writes itself, and what the steps of a key come to, counted anew."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.utils import timezone

from django_idempotency.models import IdempotencyKey, IdempotencyStep

STEP_OF = ("key_id", "key_hash", "scope_hash")
COUNTS = ("pk", "key_hash", "scope_hash", "unknown", "effects")


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
    """The keys whose row does not say what their steps come to, by the table of steps; empty if all do."""
    steps: dict[tuple[int, int, int], list[int]] = {}
    for *of, kind, finished in IdempotencyStep.objects.using(using).values_list(*STEP_OF, "kind", "finished_at"):
        counts = steps.setdefault((of[0], of[1], of[2]), [0, 0])
        if kind != "fetch":
            counts[0] += finished is None
            counts[1] += kind == "call" and finished is not None
    keys = IdempotencyKey.objects.using(using).values_list(*COUNTS)
    rows = {tuple(of): [unknown, effects] for *of, unknown, effects in keys}
    wrong = {
        of: f"{rows[of]} on the row, {steps.get(of, [0, 0])} steps" for of in rows if rows[of] != steps.get(of, [0, 0])
    }
    return wrong | dict.fromkeys(steps.keys() - rows.keys(), "steps without their key")


def recount(row: IdempotencyKey, **changes: Any) -> None:
    """Make these changes of a row whose counts a test has moved. Times are as they were."""
    unknown, effects = counted(row)
    failed = changes.get("status", row.status) == "failed"
    since = timezone.now() if failed and unknown + effects else None
    found = IdempotencyKey.objects.using(row._state.db).filter(key_hash=row.key_hash, scope_hash=row.scope_hash)
    found.update(unknown=unknown, effects=effects, attention_at=since, policy=row.policy or "hold", **changes)
    row.refresh_from_db()
