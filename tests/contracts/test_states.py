"""Each state of a stored key: what a claim in atomic mode that meets the state is told, on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted, InDoubt, Mismatched, Snapshot
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import SNAPSHOT, a_claim, complete

LATER = timedelta(days=2)
OVER = {"expires_at": F("expires_at") - LATER}
OTHER = {"fingerprint": b"x" * 32}
IN_PROGRESS, FAILED = {"status": "in_progress"}, {"status": "failed", "last_error": "it broke"}
LEASED = {**IN_PROGRESS, "locked_until": F("expires_at") + LATER}
LAPSED = {**IN_PROGRESS, "locked_until": F("created_at")}
DONE = Completed(snapshot=SNAPSHOT, resource=("order", "7"))
TOMBSTONE = Completed(
    snapshot=Snapshot(status_code=SNAPSHOT.status_code, headers=SNAPSHOT.headers, body=None), resource=("order", "7")
)
NEW, TAKEN_OVER, RESUMED, ABANDONED = "attempt 1", "attempt 2", "attempt 2, the same key", "attempt 2, abandoned"
STATES: dict[str, tuple[dict[str, Any] | None, Any]] = {
    "no row": (None, NEW),
    "completed": ({}, DONE),
    "expired": (OVER, TAKEN_OVER),
    "expired, another payload": ({**OVER, **OTHER}, TAKEN_OVER),
    "a tombstone": ({"body": None}, TOMBSTONE),
    "another payload": (OTHER, Mismatched()),
    "no fingerprint": ({"fingerprint": None}, DONE),
    "another scope": ({"scope": "another"}, Mismatched()),
    "another operation": ({"operation": "another"}, Mismatched()),
    "another key": ({"key": "8E03978E"}, Mismatched()),
    "another scope, expired": ({"scope": "another", **OVER}, Mismatched()),
    "without a lease": (IN_PROGRESS, InDoubt()),
    "without a lease, another payload": ({**IN_PROGRESS, **OTHER}, Mismatched()),
    "without a lease, expired": ({**IN_PROGRESS, **OVER}, InDoubt()),
    "leased": (LEASED, Conflicted()),
    "leased, another payload": ({**LEASED, **OTHER}, Conflicted()),
    "leased, expired": ({**LEASED, **OVER}, Conflicted()),
    "lapsed": (LAPSED, ABANDONED),
    "lapsed, expired": ({**LAPSED, **OVER}, ABANDONED),
    "lapsed, another payload": ({**LAPSED, **OTHER}, Mismatched()),
    "another row with the same key_hash": ({"scope_hash": F("scope_hash") + 1}, NEW),
    "another row with the same scope_hash": ({"key_hash": F("key_hash") + 1}, NEW),
    "failed": (FAILED, RESUMED),
    "failed, expired": ({**FAILED, **OVER}, TAKEN_OVER),
    "failed, another payload": ({**FAILED, **OTHER}, Mismatched()),
}


def stored(changes: dict[str, Any]) -> None:
    store = store_for("default")
    with transaction.atomic():
        claim = store.claim(a_claim())
        assert isinstance(claim, Claimed)
        complete(store, claim, SNAPSHOT, resource=("order", "7"))
    IdempotencyKey.objects.update(**changes)


@pytest.mark.django_db
class TestStatesContract:
    @pytest.mark.parametrize("state", STATES)
    def test_a_claim_that_meets_the_state(self, state: str) -> None:
        """The row is judged on its status first, whichever mode has made it."""
        changes, expected = STATES[state]
        if changes is not None:
            stored(changes)
        with transaction.atomic():
            outcome = store_for("default").claim(a_claim())
        if not isinstance(outcome, Claimed):
            assert outcome == expected
            return
        row = IdempotencyKey.objects.get(pk=outcome.id)
        same = ", the same key" if outcome.resource else ""
        assert f"attempt {outcome.attempt}{', abandoned' if outcome.abandoned else same}" == expected
        assert (row.status, row.attempt, row.locked_until) == ("in_progress", outcome.attempt, None)
        assert (row.resource_id is None) == (expected in (NEW, TAKEN_OVER))
        assert timedelta(seconds=30) < row.expires_at - row.updated_at < timedelta(seconds=90)

    def test_a_completed_row_without_a_result_is_a_bug(self) -> None:
        """No store writes one."""
        stored({"status_code": None})
        with pytest.raises(RuntimeError, match=r"Bug: idempotency key row \d+ is 'completed' without"):
            store_for("default").claim(a_claim())
