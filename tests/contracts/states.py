"""Each state of a stored key: what a claim that meets the state is told, by functions and by statements."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import a_claim
from tests.functions import going, request_like

LATER = timedelta(days=2)
STATES: dict[str, dict[str, Any] | None] = {
    "no row": None,
    "completed": {},
    "completed, about a resource": {"resource_type": "order", "resource_id": "7"},
    "expired": {"expires_at": F("expires_at") - LATER},
    "expired, another payload": {"expires_at": F("expires_at") - LATER, "fingerprint": b"x" * 32},
    "a tombstone": {"body": None},
    "another payload": {"fingerprint": b"x" * 32},
    "no fingerprint": {"fingerprint": None},
    "another scope": {"scope": "another"},
    "another operation": {"operation": "another"},
    "another key": {"key": "8E03978E"},
    "another scope, expired": {"scope": "another", "expires_at": F("expires_at") - LATER},
    "in progress": {"status": "in_progress"},
    "in progress, another payload": {"status": "in_progress", "fingerprint": b"x" * 32},
    "in progress, expired": {"status": "in_progress", "expires_at": F("expires_at") - LATER},
    "leased": {"status": "in_progress", "locked_until": F("expires_at") + LATER},
    "leased, another payload": {
        "status": "in_progress",
        "locked_until": F("expires_at") + LATER,
        "fingerprint": b"x" * 32,
    },
    "lapsed": {"status": "in_progress", "locked_until": F("created_at")},
    "lapsed, another payload": {"status": "in_progress", "locked_until": F("created_at"), "fingerprint": b"x" * 32},
    "completed without a result": {"status_code": None},
    "another row with the same key_hash": {"scope_hash": F("scope_hash") + 1},
    "another row with the same scope_hash": {"key_hash": F("key_hash") + 1},
    "failed": {"status": "failed"},
    "failed, expired": {"status": "failed", "expires_at": F("expires_at") - LATER},
    "failed, another payload": {"status": "failed", "fingerprint": b"x" * 32},
}


def met(state: str, way: str, fingerprint: bytes | None) -> Any:
    """The outcome of a claim that meets this state; of a claim that is granted, all but the id."""
    IdempotencyKey.objects.all().delete()
    if (changes := STATES[state]) is not None:
        request_like()
        IdempotencyKey.objects.update(**{"resource_id": None, "resource_type": None, **changes})
    with going(way), transaction.atomic():
        try:
            outcome = store_for("default").claim(a_claim(fingerprint=fingerprint))
        except RuntimeError as error:
            return str(error).replace(str(IdempotencyKey.objects.get().pk), "ID")
    if not isinstance(outcome, Claimed):
        return outcome
    row = IdempotencyKey.objects.values().get(pk=outcome.id)
    times = {name: row.pop(name) for name in ("created_at", "updated_at", "completed_at", "expires_at")}
    assert timedelta(seconds=30) < times["expires_at"] - times["updated_at"] < timedelta(seconds=90)
    return outcome.attempt, outcome.abandoned, outcome.resource, {**row, "id": None}
