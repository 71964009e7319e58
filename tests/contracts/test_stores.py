"""What every store promises on every table: `claims` go in, and `outcomes` come out."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from socket import gethostname

import pytest
from django.db import transaction
from django.utils import timezone

from django_idempotency.engine.protocol.outcomes import (
    Claimed,
    ClaimRequest,
    Completed,
    Conflicted,
    InDoubt,
    Snapshot,
    TooOld,
)
from django_idempotency.engine.stores import Store, store_for
from django_idempotency.engine.stores.sealing import unseal
from django_idempotency.exceptions import ClaimLost, LeaseLost
from django_idempotency.maintenance import close_with
from django_idempotency.models import IdempotencyKey
from tests.claims import SNAPSHOT, a_claim, complete, expire, granted


@pytest.mark.django_db
class TestStoreContract:
    @pytest.fixture
    def store(self) -> Store:
        return store_for("default")

    def finish(self, store: Store, claim: ClaimRequest, snapshot: Snapshot = SNAPSHOT) -> Claimed:
        claimed = store.claim(claim)
        assert isinstance(claimed, Claimed)
        complete(store, claimed, snapshot)
        return claimed

    def fail(self, store: Store, claim: ClaimRequest, error: str = "it broke") -> None:
        claimed = store.claim(claim)
        assert isinstance(claimed, Claimed)
        store.journal.fail(claimed, claim, error)

    def test_a_new_key_is_claimed_at_attempt_one(self, store: Store) -> None:
        """The first claim of a key is ours."""
        claimed = store.claim(a_claim())
        row = IdempotencyKey.objects.get()
        assert claimed == granted(row.pk, 1)
        assert (row.status, row.scope, row.operation, row.key) == (
            "in_progress",
            "user:auth.User:1",
            "POST orders/",
            "8e03978e",
        )

    @pytest.mark.parametrize("body", [SNAPSHOT.body, b"", None], ids=["a body", "an empty body", "a tombstone"])
    def test_a_completed_key_gives_back_every_byte(self, store: Store, body: bytes | None) -> None:
        """Status, headers in order and body come back as they were stored. No body is not an empty body."""
        kept = replace(SNAPSHOT, body=body)
        self.finish(store, a_claim(), kept)
        assert store.claim(a_claim()) == Completed(snapshot=kept)

    @pytest.mark.parametrize("other", [{"scope": "user:auth.User:2"}, {"operation": "PATCH x"}, {"key": "8E03978E"}])
    def test_scope_operation_and_the_keys_case_are_told_apart(self, store: Store, other: dict[str, str]) -> None:
        """Another caller, another operation and another spelling are other keys."""
        self.finish(store, a_claim())
        assert isinstance(store.claim(a_claim(**other)), Claimed)
        assert IdempotencyKey.objects.count() == 2

    def test_a_released_key_is_as_if_never_seen(self, store: Store) -> None:
        """Releasing deletes the row."""
        claimed = store.claim(a_claim())
        assert isinstance(claimed, Claimed)
        store.release(claimed)
        assert not IdempotencyKey.objects.exists()
        assert isinstance(store.claim(a_claim(fingerprint=b"g" * 32)), Claimed)

    def test_an_expired_key_is_taken_over(self, store: Store) -> None:
        """After ttl the same row is ours again, one attempt further, without the old result."""
        first = self.finish(store, a_claim())
        expire()
        created_at = IdempotencyKey.objects.get().created_at
        assert store.claim(a_claim(fingerprint=b"g" * 32)) == granted(first.id, 2)
        row = IdempotencyKey.objects.get()
        assert row.created_at > created_at
        assert (row.status, row.status_code, row.headers, row.body, row.completed_at) == (
            "in_progress",
            None,
            None,
            None,
            None,
        )
        assert bytes(row.fingerprint or b"") == b"g" * 32
        assert row.expires_at > timezone.now()

    def test_a_key_names_the_process_that_claimed_it_last(self, store: Store) -> None:
        """At the first claim, at the takeover of an expired key, and of one whose lease is over."""
        keys, process = IdempotencyKey.objects, f"{gethostname()[:80]}:{os.getpid()}"
        self.finish(store, a_claim())
        assert keys.get().worker == process
        keys.update(worker="dead:1")
        expire()
        assert isinstance(store.claim(a_claim(lease=60.0)), Claimed)
        assert keys.get().worker == process
        keys.update(worker="dead:1", locked_until=timezone.now() - timedelta(days=1))
        assert isinstance(store.claim(a_claim(lease=60.0)), Claimed)
        assert (keys.get().worker, keys.get().attempt) == (process, 3)

    @pytest.mark.parametrize("action", ["complete", "release"])
    def test_a_vanished_claim_is_an_error(self, store: Store, action: str) -> None:
        """A result is never kept for a row that is gone."""
        claimed = store.claim(a_claim())
        IdempotencyKey.objects.all().delete()
        with pytest.raises(ClaimLost, match="raw ROLLBACK, caught a deadlock or a lock timeout, deleted the row"):
            store.release(claimed) if action == "release" else complete(store, claimed, SNAPSHOT)

    def test_a_recovery_claims_no_key_that_is_gone_or_completed(self, store: Store) -> None:
        """Nor one that has expired: a late key of a client is refused in the same way."""
        request = a_claim(lease=60.0, known_only=True)
        assert store.claim(request) == TooOld()
        self.finish(store, a_claim())
        assert store.claim(request) == Completed(snapshot=SNAPSHOT)
        expire()
        assert store.claim(request) == TooOld()
        assert IdempotencyKey.objects.get().attempt == 1

    @pytest.mark.parametrize("late", [True, False])
    def test_whether_a_key_is_late_is_asked_with_the_databases_time(self, store: Store, late: bool) -> None:
        """A late key leaves no row, and is as unknown as before."""
        asked = []
        request = a_claim(late=lambda now: asked.append(now) or late)
        with transaction.atomic():
            outcome = store.claim(request)
        assert isinstance(outcome, TooOld if late else Claimed)
        assert IdempotencyKey.objects.count() == (0 if late else 1)
        (now,) = asked
        assert abs(now - timezone.now().timestamp()) < 5
        assert isinstance(store.claim(a_claim()), Claimed if late else InDoubt)

    def test_a_dated_key_is_never_taken_over(self, store: Store) -> None:
        """Its row says that it has run, however young a `ttl` that was raised since makes it."""
        self.finish(store, a_claim())
        expire()
        assert store.claim(a_claim(late=lambda now: False)) == TooOld()
        assert IdempotencyKey.objects.get().attempt == 1

    def test_ttl_counts_from_the_claim_by_the_databases_clock(self, store: Store) -> None:
        """expires_at is created_at plus ttl."""
        store.claim(a_claim(ttl=90.5))
        row = IdempotencyKey.objects.get()
        assert abs((row.expires_at - row.created_at).total_seconds() - 90.5) < 0.1
        assert abs((row.created_at - timezone.now()).total_seconds()) < 5

    def test_purge_deletes_expired_keys_only_and_in_batches(self, store: Store) -> None:
        """Living keys and keys in progress stay."""
        for number in range(5):
            self.finish(store, a_claim(key=f"old{number}"))
        store.claim(a_claim(key="running"))
        expire()
        self.finish(store, a_claim(key="new"))
        batches, not_before = [], None
        while not batches or batches[-1]:
            deleted, not_before = store.purge(2, not_before)
            batches.append(deleted)
        assert batches == [2, 2, 1, 0]
        assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"running", "new"}

    def test_a_purge_begins_where_the_last_one_has_stopped(self, store: Store) -> None:
        """So it does not step over deleted rows again. On SQLite each begins at the oldest row."""
        for number in range(3):
            self.finish(store, a_claim(key=f"old{number}"))
        expire()
        _, stopped = store.purge(1)
        last = IdempotencyKey.objects.latest("pk")
        earlier = last.expires_at - timedelta(seconds=1)  # not F(): Citus refuses it in an UPDATE
        IdempotencyKey.objects.filter(key=last.key).update(expires_at=earlier)
        assert store.purge(10, stopped)[0] == (2 if stopped is None else 1)
        assert store.purge(10, stopped) == (0, stopped)

    @pytest.mark.parametrize("meanwhile", ["claimed", "failed again", "closed"])
    def test_a_retry_takes_no_key_that_has_changed_since_it_was_read(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, meanwhile: str
    ) -> None:
        """Another retry has claimed it, or a person has entered the answer, before this one could lock the row."""
        request = a_claim(lease=60.0)
        self.fail(store, request)
        read = store._read(request)
        if meanwhile == "closed":
            close_with(IdempotencyKey.objects.get(), SNAPSHOT)
        elif meanwhile == "claimed":
            assert isinstance(store.claim(request), Claimed)
        else:
            self.fail(store, request)
        before = IdempotencyKey.objects.values().get()
        monkeypatch.setattr(store, "_insert", lambda claim: None)
        monkeypatch.setattr(store, "_read", lambda claim: read)
        assert store.claim(request) == Conflicted()
        assert IdempotencyKey.objects.values().get() == before

    def test_each_attempt_has_the_policy_and_the_lease_of_its_own_request(self, store: Store) -> None:
        """The row shows them: the options may have changed since the last attempt."""
        for policy, lease in (("hold", 60.0), ("retry", 60.0), (None, None)):
            claimed = store.claim(request := a_claim(policy=policy, lease=lease))
            assert isinstance(claimed, Claimed)
            row = IdempotencyKey.objects.get()
            assert (row.policy, row.locked_until is None) == (policy, lease is None)
            store.journal.fail(claimed, request, "it broke")

    def test_a_late_worker_changes_no_key_that_a_person_has_closed(self, store: Store) -> None:
        """Its attempt is still the last one."""
        request = a_claim(lease=60.0)
        claimed = store.claim(request)
        assert isinstance(claimed, Claimed)
        IdempotencyKey.objects.update(locked_until=timezone.now() - timedelta(days=1))
        close_with(IdempotencyKey.objects.get(), SNAPSHOT)
        before, journal = IdempotencyKey.objects.values().get(), store.journal
        for late in (
            lambda: journal.fence(claimed),
            lambda: journal.renew(claimed, 60.0),
            lambda: journal.fail(claimed, request, "it broke"),
            lambda: journal.start_call(claimed, "charge", keyed=False),
        ):
            with pytest.raises(LeaseLost), transaction.atomic():
                late()
        assert IdempotencyKey.objects.values().get() == before

    def test_a_value_is_entered_only_for_the_call_that_has_lost_it(self, store: Store) -> None:
        claimed, journal = store.claim(a_claim(lease=60.0)), store.journal
        assert isinstance(claimed, Claimed)
        for name, result in (("lost", None), ("also lost", None), ("kept", "1")):
            journal.start_call(claimed, name, keyed=False)
            journal.finish_call(claimed, name, result)
        for name in ("lost", "kept"):
            journal.enter_lost(claimed, name, "2")
        results = {name: step.result for name, step in journal.steps(claimed).items()}
        assert results == {"lost": "2", "also lost": None, "kept": "1"}

    def test_the_text_of_an_error_is_kept_in_ascii(self, store: Store) -> None:
        """A text that the database refuses would leave the key locked until its lease ends."""
        self.fail(store, a_claim(lease=60.0), "Überlauf")
        row = IdempotencyKey.objects.get()
        assert unseal(row, "last_error", row.last_error) == r"\xdcberlauf"

    def test_a_conflict_brings_what_is_left_of_the_lease(self, store: Store) -> None:
        """By the database's clock. A lease of 1,000 seconds has just begun."""
        store.claim(a_claim(lease=1000.0))
        for duplicate in (store.claim(a_claim(lease=1000.0)), store.claim(a_claim()), store.look(a_claim())):
            assert isinstance(duplicate, Conflicted)
            assert 900 < duplicate.lease_left <= 1000

    def test_a_look_at_a_key_that_is_free_again_is_a_conflict(self, store: Store) -> None:
        """Gone, failed or expired: the client of a worker that was too late comes back later."""
        assert store.look(a_claim()) == Conflicted()
        self.fail(store, a_claim(lease=60.0))
        assert store.look(a_claim()) == Conflicted()
        self.finish(store, a_claim(key="another"))
        expire()
        assert store.look(a_claim(key="another")) == Conflicted()

    def test_a_rolled_back_claim_leaves_nothing(self, store: Store) -> None:
        """The claim lives and dies with its transaction."""
        with transaction.atomic():
            store.claim(a_claim())
            transaction.set_rollback(True)
        assert isinstance(store.claim(a_claim()), Claimed)

    def test_a_row_that_vanished_is_claimed_after_all(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cleanup may be faster than our reading: the insert is repeated, once."""
        insert, tries = store._insert, iter([None])
        monkeypatch.setattr(store, "_insert", lambda claim: next(tries, insert) and insert(claim))
        assert isinstance(store.claim(a_claim()), Claimed)
        monkeypatch.setattr(store, "_insert", lambda claim: None)
        assert store.claim(a_claim(key="another")) == Conflicted()

    def test_a_takeover_that_came_too_late_reads_again(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody else has taken the expired key over and completed it in the meantime."""
        self.finish(store, a_claim())
        expire()

        take_over = store._take_over

        def too_late(row_id: int, claim: ClaimRequest) -> int | None:
            IdempotencyKey.objects.update(expires_at=timezone.now() + timedelta(days=2))
            return take_over(row_id, claim)

        monkeypatch.setattr(store, "_take_over", too_late)
        assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
