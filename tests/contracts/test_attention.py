"""What each store keeps about a key for a person: its policy, its resource, and whether it needs attention."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted, InDoubt
from django_idempotency.engine.stores import Store, store_for
from django_idempotency.maintenance import (
    cleanup_idempotency_keys,
    close_with,
    find_resource,
    half_done,
    in_doubt,
    needs_attention,
    record_outcome,
    release_for_retry,
    stuck,
)
from django_idempotency.maintenance.cleanup import fail_harmless, preview
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import SNAPSHOT, a_claim, complete, expire
from tests.leases import lapse, row

LEASED = a_claim(lease=60.0, policy="retry")
ORDER = ("shop.order", "59")


def claimed(store: Store, **changes: Any) -> Claimed:
    with transaction.atomic():
        claim = store.claim(a_claim(**{"lease": 60.0, "policy": "retry", **changes}))
    assert isinstance(claim, Claimed)
    return claim


def start(store: Store, claim: Claimed, name: str = "charge") -> None:
    store.journal.start_call(claim, name, keyed=False)


def finish(store: Store, claim: Claimed, name: str = "charge") -> None:
    store.journal.finish_call(claim, name, "{}")


def attention() -> dict[str, int]:
    return {lookup.__name__: lookup().count() for lookup in (stuck, in_doubt, half_done, needs_attention)}


NONE = {"stuck": 0, "in_doubt": 0, "half_done": 0, "needs_attention": 0}


@pytest.mark.django_db(transaction=True)
class TestAttentionContract:
    @pytest.fixture
    def store(self) -> Store:
        return store_for("default")

    @pytest.mark.parametrize(
        "change",
        [
            *("complete", "fail", "start", "finish", "renew", "refer"),
            *("release", "record", "close", "cleanup", "resume", "take over"),
        ],
    )
    def test_updated_at_says_when_the_state_last_changed(self, store: Store, change: str) -> None:
        """Each transition sets it, by the database's clock. A decision about what was shown before is then refused."""
        claim = claimed(store)
        if change in ("finish", "record"):
            start(store, claim)
        if change in ("release", "record", "close", "cleanup", "resume"):
            lapse()
        if change == "take over":
            complete(store, claim, SNAPSHOT)
            expire()
        long_ago = timezone.now() - timedelta(days=5)
        IdempotencyKey.objects.update(updated_at=long_ago)
        changes: dict[str, Callable[[], Any]] = {
            "complete": lambda: complete(store, claim, SNAPSHOT),
            "fail": lambda: store.journal.fail(claim, LEASED, "it broke"),
            "start": lambda: start(store, claim),
            "finish": lambda: finish(store, claim),
            "renew": lambda: store.journal.renew(claim, 60.0),
            "refer": lambda: store.journal.refer(claim, ORDER),
            "release": lambda: release_for_retry(row()),
            "record": lambda: record_outcome(row(), "charge", 1),
            "close": lambda: close_with(row(), SNAPSHOT),
            "cleanup": cleanup_idempotency_keys,
            "resume": lambda: claimed(store),
            "take over": lambda: claimed(store),
        }
        changes[change]()
        updated_at = row().updated_at
        assert updated_at is not None
        assert updated_at > long_ago + timedelta(days=4)

    def test_a_result_carries_what_it_is_about(self, store: Store) -> None:
        """A duplicate is told, and a search finds the key by type and id."""
        with transaction.atomic():
            claim = store.claim(a_claim())
            assert isinstance(claim, Claimed)
            complete(store, claim, SNAPSHOT, resource=ORDER)
        outcome = store.look(a_claim())
        assert isinstance(outcome, Completed)
        assert outcome.resource == ORDER
        for text in ("59", "order 59", "Shop.Order  59 "):
            assert list(find_resource(text)) == [row()], text
        for text in ("5", "rder 59", "shop 59", "order 5", "", "order"):
            assert not find_resource(text), text

    def test_a_leased_key_keeps_it_over_attempts_until_its_end(self, store: Store) -> None:
        """The retry knows it. The next use of the key does not."""
        store.journal.refer(claimed(store), ORDER)
        lapse()
        assert claimed(store).resource == ORDER
        store.journal.refer(second := Claimed(**{**fields(row()), "attempt": 2}), ("shop.order", "60"))
        complete(store, second, SNAPSHOT)
        assert (row().resource_type, row().resource_id) == ("shop.order", "60")
        expire()
        assert claimed(store).resource is None
        assert row().resource_id is None

    def test_a_held_request_says_what_is_in_doubt(self, store: Store) -> None:
        """The log names the order, not only the key."""
        claim = claimed(store, policy="hold")
        store.journal.refer(claim, ORDER)
        start(store, claim)
        lapse()
        with transaction.atomic():
            outcome = store.claim(a_claim(lease=60.0))
        assert isinstance(outcome, InDoubt)
        assert outcome.resource == ORDER

    def test_a_finished_call_makes_a_key_half_done(self, store: Store) -> None:
        """Once no worker holds it: after its lease, and after it has failed. Completed, it needs no attention."""
        claim = claimed(store)
        start(store, claim)
        finish(store, claim)
        assert attention() == NONE
        lapse()
        assert attention() == {**NONE, "half_done": 1, "needs_attention": 1}
        second = claimed(store)
        store.journal.fail(second, LEASED, "it broke")
        assert attention() == {**NONE, "half_done": 1, "needs_attention": 1}
        complete(store, claimed(store), SNAPSHOT)
        assert attention() == NONE

    def test_a_half_done_key_never_expires(self, store: Store) -> None:
        """A retry after the `ttl` goes on from the charge, and a cleanup deletes nothing."""
        claim = claimed(store)
        start(store, claim)
        finish(store, claim)
        store.journal.fail(claim, LEASED, "it broke")
        expire()
        cleanup = cleanup_idempotency_keys()
        assert (cleanup.deleted, cleanup.half_done) == (0, 1)
        assert claimed(store).attempt == 2
        assert list(store.journal.steps(Claimed(**{**fields(row()), "attempt": 2}))) == ["charge"]

    def test_a_read_alone_needs_no_attention(self, store: Store) -> None:
        """Its result is there for the retry, as long as the key is."""
        claim = claimed(store)
        store.journal.keep_fetched(claim, "rate", '{"value": 1.5}')
        store.journal.fail(claim, LEASED, "it broke")
        assert attention() == NONE
        (rate,) = store.journal.steps(claimed(store)).values()
        assert rate[:3] == ("fetch", True, '{"value": 1.5}')
        step = IdempotencyStep.objects.get()
        assert (step.kind, step.attempt, step.finished_at is None) == ("fetch", 1, False)

    @pytest.mark.parametrize("kept", ["nothing", "a read", "a write"])
    def test_a_cleanup_fails_a_stuck_key_that_has_called_nothing(self, store: Store, kept: str) -> None:
        """The alarm ends, what is kept stays, and the last error says what has ended the attempt."""
        claim = claimed(store, ttl=90 * 86400.0)
        if kept == "a read":
            store.journal.keep_fetched(claim, "rate", "{}")
        if kept == "a write":
            with transaction.atomic():
                store.journal.start_write(claim, "order")
                store.journal.finish_write(claim, "order", "{}")
        expires_at = row().expires_at
        lapse()
        assert (preview().unstuck, preview().stuck) == (1, 0)
        cleanup = cleanup_idempotency_keys()
        assert (cleanup.unstuck, cleanup.stuck, cleanup.deleted, cleanup.batches) == (1, 0, 0, 1)
        assert (row().status, row().locked_until, row().expires_at) == ("failed", None, expires_at)
        assert row().last_error == (
            "cleanup_idempotency_keys: the lease had expired, and nothing outside had been called."
        )
        assert row().decisions is None
        assert IdempotencyStep.objects.count() == (kept != "nothing")
        assert claimed(store).attempt == 2

    def test_it_is_kept_for_a_ttl_from_then_on(self, store: Store) -> None:
        """A retry must find the writes that are finished, also if the `ttl` is over when the cleanup comes."""
        claimed(store)
        lapse()
        expire()
        assert (cleanup_idempotency_keys().unstuck, cleanup_idempotency_keys().deleted) == (1, 0)
        assert row().expires_at > timezone.now() + timedelta(hours=23)

    @pytest.mark.parametrize(
        "state", ["alive", "in doubt", "half done", "write in doubt", "without a lease", "completed"]
    )
    def test_a_cleanup_fails_no_other_key(self, store: Store, state: str) -> None:
        """A person, a retry or its worker decides about each of these."""
        claim = claimed(store, lease=None if state == "without a lease" else 60.0)
        if state in ("in doubt", "half done"):
            start(store, claim)
        if state == "half done":
            finish(store, claim)
        if state == "write in doubt":
            with transaction.atomic():
                store.journal.start_write(claim, "order")
        if state == "completed":
            complete(store, claim, SNAPSHOT)
        if state not in ("alive", "completed"):
            lapse()
        before = row().status
        assert cleanup_idempotency_keys().unstuck == 0
        assert (row().status, row().decisions) == (before, None)

    def test_a_worker_that_wakes_up_fails_at_its_fence(self, store: Store) -> None:
        """It can neither call, nor write, nor complete."""
        claim = claimed(store)
        lapse()
        cleanup_idempotency_keys()
        steps: list[Callable[[], Any]] = [
            lambda: start(store, claim),
            lambda: store.journal.start_write(claim, "order"),
            lambda: store.journal.keep_fetched(claim, "rate", "{}"),
            lambda: store.journal.renew(claim, 60),
            lambda: complete(store, claim, SNAPSHOT),
        ]
        for step in steps:
            with pytest.raises(Exception, match=r"has taken|is gone"), transaction.atomic():
                step()
        assert (row().status, IdempotencyStep.objects.count()) == ("failed", 0)

    def test_the_condition_is_asked_again_under_the_lock(self, store: Store) -> None:
        """A worker has started a call after the cleanup has listed the key."""
        claim = claimed(store)
        lapse()
        start(store, claim)
        with transaction.atomic():
            assert fail_harmless(IdempotencyKey.objects.all()) == 0
        assert row().status == "in_progress"

    def test_a_decision_forgets_the_doubt_and_nothing_else(self, store: Store) -> None:
        """The calls that have ended stay, so that the retry makes none of them again. So does the error."""
        claim = claimed(store)
        for name in ("charge", "mail"):
            start(store, claim, name)
        finish(store, claim, "charge")
        store.journal.fail(claim, LEASED, "it broke")
        release_for_retry(row())
        assert list(IdempotencyStep.objects.values_list("name", "result")) == [("charge", "{}")]
        assert row().last_error == "it broke"

    @pytest.mark.only_on("postgresql", "mysql")
    def test_a_key_that_is_being_used_is_passed_over(self, store: Store, in_threads: Any) -> None:
        """Its worker starts a call at this moment: the cleanup neither waits nor fails the key."""
        claim = claimed(store)
        lapse()
        with transaction.atomic():
            store.journal.start_call(claim, "charge", keyed=False)
            (cleanup,) = in_threads(1, lambda number: cleanup_idempotency_keys())
        assert (cleanup.unstuck, row().status) == (0, "in_progress")

    @pytest.mark.only_on("postgresql", "mysql")
    def test_cleanups_and_retries_at_the_same_moment_leave_one_worker(self, store: Store, in_threads: Any) -> None:
        """Whichever comes first, one retry runs, at attempt 2: now, or if a cleanup held the key, the next one."""
        claimed(store)
        lapse()
        barrier = Barrier(10, timeout=30)

        def race(number: int) -> Any:
            barrier.wait()
            if number % 2:
                return cleanup_idempotency_keys().unstuck
            for _ in range(5):
                try:
                    with transaction.atomic():
                        outcome = store.claim(LEASED)
                except Exception as error:
                    if store.code(error) not in store.repeatable and store.code(error) not in store.busy:
                        raise
                    continue
                if isinstance(outcome, Claimed):
                    return outcome.attempt
            return Conflicted()

        outcomes = in_threads(10, race)
        attempts = [outcome for outcome in outcomes[::2] if outcome != Conflicted()]
        assert attempts in ([], [2])
        if not attempts:
            claimed(store)
        assert sum(o for number, o in enumerate(outcomes) if number % 2) <= 1
        assert (row().status, row().attempt) == ("in_progress", 2)


def fields(key: IdempotencyKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in ("id", "attempt", "key_hash", "scope_hash")}
