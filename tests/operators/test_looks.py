"""What a recovery that settles nothing leaves as it was: for a person, its look is no change of the key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpResponse

from django_idempotency import NotResolvable, OutcomeUnknown
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.engine.stores.states import Clock
from django_idempotency.maintenance import Recovered, recover_idempotency_keys
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.maintenance.resolution import close_with, record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.leased_urls import GATEWAY, HOOKS, leave_in_doubt
from tests.leases import Broken, breaks, row
from tests.recovering import only, records, recover
from tests.resolving import resolve
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]
Post = Callable[..., Any]


@pytest.fixture
def key() -> str:
    return "k"


@pytest.fixture
def unclear(post: Post) -> IdempotencyKey:
    """A charge in doubt that `reconcile` cannot settle, as a person sees it; then a recovery looks at it twice."""
    HOOKS["reconcile"] = lambda operation: None
    leave_in_doubt(post, "/pay/reconcile")
    IdempotencyKey.objects.update(attention_at=Clock(plus=-7200))
    seen = row()
    for _ in range(2):
        assert only().outcome == "left"
    assert row().attempt == seen.attempt + 2
    return seen


@pytest.mark.django_db(transaction=True)
def test_a_look_is_no_change_for_a_person(unclear: IdempotencyKey, post: Post) -> None:
    """What was looked up in the gateway's books is still true: one charge, and one order."""
    record_outcome(unclear, "charge", {"charge": "ch_1"}, by="ada", reason="t")
    assert post("/pay/reconcile").status_code == 201
    assert (len(GATEWAY.charges), Order.objects.count()) == (1, 1)


def test_a_doubt_is_as_old_as_it_is(unclear: IdempotencyKey) -> None:
    """However often a recovery has looked."""
    assert row().attention_at == unclear.attention_at
    told = resolve("--older-than=7000")
    assert (told[0], "in doubt for 2\xa0hours" in told[1]) == (0, True)


def test_a_lapsed_key_is_in_doubt_since_its_lease_ended() -> None:
    """A look turns it into a failed one, which is no change either."""
    create_key("k", status="abandoned", in_doubt=["charge"], operation="POST pay/reconcile", on_abandoned="hold")
    seen, HOOKS["reconcile"] = row(), lambda operation: None
    assert only().outcome == "left"
    assert (row().status, row().attention_at) == ("failed", seen.locked_until)
    release_for_retry(seen)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("happens", ["a decision", "a finding"])
def test_what_a_person_calls_a_change_is_one(unclear: IdempotencyKey, happens: str) -> None:
    """Another person has decided, or `reconcile` has found the charge."""
    if happens == "a decision":
        release_for_retry(unclear)
    else:
        HOOKS["reconcile"] = records
        recover()
    with pytest.raises(NotResolvable):
        close_with(unclear, Snapshot(status_code=410, headers=(), body=b""))


@pytest.mark.django_db(transaction=True)
def test_a_call_that_a_retry_has_made_again_is_a_change(post: Post) -> None:
    """Whoever has found no charge before looks again."""
    GATEWAY.after = breaks
    for number in range(2):
        with pytest.raises(Broken):
            post("/pay")
        if number == 0:
            seen = row()
    assert GATEWAY.calls == 2
    with pytest.raises(NotResolvable):
        release_for_retry(seen)


class TestItDoesNotKnowYet:
    """`OutcomeUnknown` raised in `reconcile` is no failure of the run."""

    @pytest.fixture(autouse=True)
    def _doubt(self, unclear: IdempotencyKey) -> None:
        """It was two hours old before the looks."""

    @staticmethod
    def not_yet(operation: Any) -> None:
        raise OutcomeUnknown("not in its list yet")

    def test_the_key_is_left_as_old_as_it_was(self, caplog: pytest.LogCaptureFixture) -> None:
        """And no error is logged."""
        HOOKS["reconcile"] = self.not_yet
        before = row().attention_at
        asked = only()
        assert asked.outcome == "left"
        assert asked.reason.startswith(
            "reconcile does not know yet (django_idempotency.exceptions.OutcomeUnknown: line "
        )
        assert (row().status, row().attention_at, row().unknown) == ("failed", before, 1)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
        HOOKS["reconcile"] = lambda operation: HttpResponse("settled")
        assert only().outcome == "completed"

    def test_the_run_has_not_failed(self) -> None:
        """For cron, whose mail is read by a person."""
        HOOKS["reconcile"] = self.not_yet
        assert recover_idempotency_keys(older_than=0) == Recovered(completed=0, failed=0, left=1, complete=True)

    def test_what_it_records_before_is_in_the_trail(self) -> None:
        """One call of several may be found, and another not yet."""

        def records_and_waits(operation: Any) -> None:
            records(operation)
            self.not_yet(operation)

        HOOKS["reconcile"] = records_and_waits
        asked = only()
        assert (asked.outcome, row().unknown) == ("left", 0)
        assert asked.reason.startswith("reconcile has recorded charge, and does not know yet (")
        assert [made.detail for made in decisions_of(row())] == [asked.reason]
