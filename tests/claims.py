"""Claims as tests of the stores make them, and what time does to their keys."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Snapshot
from django_idempotency.engine.stores import Store
from django_idempotency.models import IdempotencyKey

ODD_BYTES = bytes(range(256)) * 3
SNAPSHOT = Snapshot(status_code=201, headers=(("Content-Type", "x/y"), ("X-Ünï", 'q"\\')), body=ODD_BYTES)


def a_claim(**changes: Any) -> ClaimRequest:
    identity = identify(
        scope=changes.pop("scope", "user:auth.User:1"),
        operation=changes.pop("operation", "POST orders/"),
        key=changes.pop("key", "8e03978e"),
    )
    if changes.get("lease") is not None:
        changes.setdefault("policy", "hold")
    return replace(ClaimRequest(identity=identity, fingerprint=b"f" * 32, ttl=60), **changes)


def claim_and_commit(store: Store, request: ClaimRequest) -> ClaimOutcome:
    """A claim in a transaction of its own, as leased mode makes it."""
    with transaction.atomic(using=store.alias):
        return store.claim(request)


def complete(store: Store, claimed: Claimed, snapshot: Snapshot = SNAPSHOT, **about: Any) -> None:
    """In a block of its own, because a store may send COMMIT along with a completion."""
    with transaction.atomic(using=store.alias):
        store.complete(claimed, snapshot, **about)


def expire() -> None:
    """The retention of every key is over."""
    IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=2))


def granted(row_id: int, attempt: int, **changes: Any) -> Claimed:
    """What the store answers to `a_claim(**changes)` if the claim is granted."""
    identity = a_claim(**changes).identity
    return Claimed(id=row_id, attempt=attempt, key_hash=identity.key_hash, scope_hash=identity.scope_hash)
