"""The contract of the fence: once another attempt has the key, everything that the late one tries raises `ClaimLost`.

No threads: one attempt after the other, on every database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from django_idempotency import ClaimLost
from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import Store, store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import SNAPSHOT, a_claim, claim_and_commit, complete, expire
from tests.leases import lapse

pytestmark = pytest.mark.django_db
LEASED = a_claim(lease=60.0, policy="retry")
ATTEMPTS: dict[str, Callable[[Store, Claimed], Any]] = {
    "complete": lambda store, late: store.complete(late, SNAPSHOT),
    "complete for a ttl": lambda store, late: store.complete_for(late, SNAPSHOT, 60.0),
    "complete if settled": lambda store, late: store.complete_settled(late, SNAPSHOT, 60.0),
    "release": lambda store, late: store.release(late),
    "fail": lambda store, late: store.journal.fail(late, LEASED, "it broke"),
    "fence": lambda store, late: store.journal.fence(late),
    "renew": lambda store, late: store.journal.renew(late, 60.0),
    "refer": lambda store, late: store.journal.refer(late, ("order", "7")),
    "read the steps": lambda store, late: store.journal.steps(late),
    "look for a step": lambda store, late: store.journal.has(late, "charge"),
    "start a call": lambda store, late: store.journal.start_call(late, "mail", keyed=False),
    "repeat a call": lambda store, late: store.journal.start_call(late, "charge", keyed=False, again=True),
    "finish a call": lambda store, late: store.journal.finish_call(late, "charge", "{}"),
    "enter a lost value": lambda store, late: store.journal.enter_lost(late, "charge", "{}"),
    "keep a read": lambda store, late: store.journal.keep_fetched(late, "rate", "{}"),
    "start a write": lambda store, late: store.journal.start_write(late, "order"),
    "finish a write": lambda store, late: store.journal.finish_write(late, "charge", "{}"),
}
AFTER_A_QUERY: dict[str, Callable[[Store, Claimed], Any]] = {
    f"{name}, after a query of the view's": lambda store, late, end=ATTEMPTS[name]: (stored(), end(store, late))
    for name in ("complete", "complete for a ttl", "complete if settled", "release")
}
"""Once its transaction has begun, PostgreSQL gets the last statement in one message with COMMIT."""
ATTEMPTS |= AFTER_A_QUERY
STEPS = {"repeat a call", "finish a call", "enter a lost value", "finish a write"}
"""What finds the step of the late attempt, which the takeover of an expired key has deleted."""


@pytest.fixture
def store() -> Store:
    return store_for("default")


def claimed(store: Store, **changes: Any) -> Claimed:
    claim = claim_and_commit(store, a_claim(**{"lease": 60.0, "policy": "retry", **changes}))
    assert isinstance(claim, Claimed)
    return claim


def stored() -> tuple[Any, ...]:
    return IdempotencyKey.objects.values().get(), *IdempotencyStep.objects.values()


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("over", ["the lease", "the attempt", "the ttl"])
def test_a_late_claim_changes_nothing(store: Store, attempt: str, over: str) -> None:
    """Its lease has expired, it has failed, or its key has expired, and the next attempt has claimed the key."""
    late = claimed(store)
    if over == "the ttl":
        complete(store, late)
        expire()
    else:
        store.journal.start_call(late, "charge", keyed=False)
        lapse() if over == "the lease" else store.journal.fail(late, LEASED, "it broke")
    winner, before = claimed(store), stored()
    with pytest.raises(ClaimLost), transaction.atomic():
        ATTEMPTS[attempt](store, late)
    assert (winner.id, winner.attempt, stored()) == (late.id, 2, before)


@pytest.mark.parametrize("attempt", sorted({*ATTEMPTS} - STEPS))
@pytest.mark.parametrize("field", ["attempt", "key_hash", "scope_hash"])
def test_each_part_of_the_fence_counts(store: Store, attempt: str, field: str) -> None:
    """Another attempt, or a row with the same id in another tenant's table."""
    own = claimed(store)
    late, before = replace(own, **{field: getattr(own, field) + 1}), stored()
    with pytest.raises(ClaimLost), transaction.atomic():
        ATTEMPTS[attempt](store, late)
    assert stored() == before


@pytest.mark.parametrize("kind", ["call", "write"])
def test_a_key_with_an_open_step_is_not_completed(store: Store, kind: str) -> None:
    """What a step without a result has done is unknown: the key stays in progress, and its doubt is seen."""
    claim = claimed(store)
    if kind == "call":
        store.journal.start_call(claim, "charge", keyed=False)
    else:
        store.journal.start_write(claim, "order")
    before = stored()
    with pytest.raises(ClaimLost), transaction.atomic():
        store.complete_settled(claim, SNAPSHOT, 60.0)
    assert stored() == before
    if kind == "call":
        store.journal.finish_call(claim, "charge", "{}")
    else:
        store.journal.finish_write(claim, "order", "{}")
    with transaction.atomic():
        store.complete_settled(claim, SNAPSHOT, 60.0)
    assert IdempotencyKey.objects.get().status == "completed"


@pytest.mark.parametrize("name", ["complete_for", "complete_settled"])
def test_a_completion_for_a_ttl_counts_from_now_on(store: Store, name: str) -> None:
    """`ttl` of the claim, 60 seconds, counts no more: leased work may have taken longer."""
    claim = claimed(store)
    with transaction.atomic():
        getattr(store, name)(claim, SNAPSHOT, 600.0)
    row = IdempotencyKey.objects.get()
    assert (row.expires_at - row.completed_at).total_seconds() == pytest.approx(600, abs=1)
