"""Claims, crashes, retries, lapsing leases, expiry, cleanup and decisions in any order, on the database at hand."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from django_idempotency import ClaimLost, LeaseLost, NotResolvable
from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted, InDoubt, Mismatched, Snapshot
from django_idempotency.engine.stores import store_for
from django_idempotency.engine.stores.journal import AlreadyFinished, NotRepeatable
from django_idempotency.maintenance.resolution import close_with, record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import a_claim
from tests.extra.model.pure import Key

NAMES = {Conflicted: "conflicted", Mismatched: "mismatched", Completed: "completed", InDoubt: "in doubt"}
KEYS, STEPS = st.sampled_from(["k1", "k2"]), st.sampled_from(["charge", "mail"])
POLICIES = st.sampled_from(["retry-keyed", "retry", "hold"])
PAST = timedelta(days=3)


class Keys(RuleBasedStateMachine):
    """Workers are never told that they are zombies: every one of them may try to write at any time."""

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        IdempotencyStep.objects.all().delete()
        IdempotencyKey.objects.all().delete()
        self.store = store_for("default")
        self.keys: dict[str, Key] = {}

    @rule(target=workers, key=KEYS, fingerprint=st.sampled_from("ab"), policy=POLICIES)
    def claim(self, key: str, fingerprint: str, policy: str) -> Any:
        law = self.keys.get(key)
        expected = "claimed" if law is None else law.claim(fingerprint, policy=policy)
        law = self.keys.setdefault(key, Key(fingerprint))
        claim = a_claim(key=key, fingerprint=fingerprint.encode() * 32, lease=60.0, policy=policy, keys_last=60.0)
        with transaction.atomic():
            outcome = self.store.claim(claim)
        if not isinstance(outcome, Claimed):
            assert NAMES[type(outcome)] == expected
            if isinstance(outcome, Completed):
                assert outcome.snapshot.body == law.result
            return multiple()
        law.row = law.row or outcome.id
        assert (expected, outcome.id, outcome.attempt) == ("claimed", law.row, law.attempt)
        assert sorted(outcome.in_doubt) == sorted(law.doubts)
        return key, claim, outcome

    def write(self, worker: Any, *, lost: type[Exception] = LeaseLost) -> tuple[Key | None, Any]:
        """The law of the worker's key, if it is still its own, and what to expect of a write."""
        key, _, claimed = worker
        law = self.keys.get(key)
        if law is not None and law.is_of(claimed.id, claimed.attempt):
            return law, transaction.atomic()
        return None, pytest.raises(lost)

    @rule(worker=workers, name=STEPS, keyed=st.booleans(), only_keyed=st.booleans())
    def start_call(self, worker: Any, name: str, keyed: bool, only_keyed: bool) -> None:
        law, expected = self.write(worker)
        if law is not None and law.steps.get(name):
            return  # it has a result: the engine does not call again
        again, keys_last = law is not None and name in law.steps, 60.0 if only_keyed else None
        if law is not None and again and only_keyed and not (keyed and law.keyed[name]):
            law, expected = None, pytest.raises(NotRepeatable)
        with expected:
            self.store.journal.start_call(worker[2], name, keyed=keyed, again=again, keys_last=keys_last)
        if law is not None:
            law.steps[name], law.keyed[name] = False, keyed and law.keyed.get(name, True)

    @rule(worker=workers, name=STEPS, result=st.sampled_from(['{"value": 1}', None]))
    def finish_call(self, worker: Any, name: str, result: str | None) -> None:
        """The value of a call may be lost. A second finish, or one without a start, changes nothing."""
        law, expected = self.write(worker)
        if law is not None and law.steps.get(name) is not False:
            law, expected = None, pytest.raises(AlreadyFinished)
        with expected:
            self.store.journal.finish_call(worker[2], name, result)
        if law is not None:
            law.steps[name] = True
            law.recorded |= {name} if result is None else set()

    @rule(worker=workers)
    def renew(self, worker: Any) -> None:
        law, expected = self.write(worker)
        with expected:
            self.store.journal.renew(worker[2], 60.0)
        if law is not None:
            law.live = True

    @rule(worker=consumes(workers), body=st.binary(max_size=3))
    def complete(self, worker: Any, body: bytes) -> None:
        law, expected = self.write(worker, lost=ClaimLost)
        with expected:
            self.store.complete_for(worker[2], Snapshot(status_code=201, headers=(), body=body), 60)
        if law is not None:
            law.end("completed", body)

    @rule(worker=workers)
    def fail(self, worker: Any) -> None:
        law, expected = self.write(worker)
        with expected:
            self.store.journal.fail(worker[2], worker[1], "it broke")
        if law is not None:
            law.end("failed")

    @rule(key=KEYS)
    def lease_runs_out(self, key: str) -> None:
        if key in self.keys and self.keys[key].status == "in_progress":
            self.keys[key].live = False
            IdempotencyKey.objects.filter(key=key).update(locked_until=timezone.now() - PAST)

    @rule(key=KEYS)
    def ttl_runs_out(self, key: str) -> None:
        if key in self.keys:
            self.keys[key].expired = True
            IdempotencyKey.objects.filter(key=key).update(expires_at=timezone.now() - PAST)

    @rule()
    def clean_up(self) -> None:
        over = [key for key, law in self.keys.items() if law.over]
        deleted, _ = self.store.purge(100)
        assert deleted == len(over)
        for key in over:
            del self.keys[key]

    @rule(key=KEYS, what=st.sampled_from(["release", "record", "close"]), name=STEPS, seen=st.integers(0, 1))
    def decide(self, key: str, what: str, name: str, seen: int) -> None:
        """A person, who may have looked at an earlier attempt."""
        law = self.keys.get(key)
        row = IdempotencyKey.objects.filter(key=key).first() or IdempotencyKey(pk=0, key_hash=0, scope_hash=0)
        row.attempt = (law.attempt if law else 1) - seen
        if seen and row.updated_at:
            row.attention_at, row.locked_until = None, row.updated_at - timedelta(seconds=1)
        allowed = law is not None and law.idle and seen == 0 and (what != "record" or law.may_record(name))
        decide = {
            "release": lambda: release_for_retry(row),
            "record": lambda: record_outcome(row, name, 1),
            "close": lambda: close_with(row, Snapshot(status_code=200, headers=(), body=b"!")),
        }[what]
        if not allowed or law is None:
            with pytest.raises(NotResolvable):
                decide()
            return
        decide()
        law.end("completed" if what == "close" else "failed", b"!")
        if what == "release":
            law.steps = {step: True for step, finished in law.steps.items() if finished}
            law.keyed = {step: law.keyed[step] for step in law.steps}
        elif what == "record":
            law.steps[name] = True
            law.recorded.add(name)

    @invariant()
    def the_table_is_as_the_law_says(self) -> None:
        rows = {row.key: row for row in IdempotencyKey.objects.all()}
        assert rows.keys() == self.keys.keys()
        for key, law in self.keys.items():
            row = rows[key]
            live = row.locked_until is not None and row.locked_until > timezone.now()
            assert (row.status, row.attempt, live) == (law.status, law.attempt, law.live)
            steps = {step.name: step.finished_at is not None for step in row.steps.all()}
            assert steps == law.steps
            assert (row.unknown, row.effects) == law.counts
            assert (row.attention_at is not None) == (law.status == "failed" and law.counts != (0, 0))


@pytest.mark.django_db(transaction=True)
def test_the_store_does_what_the_law_says() -> None:
    """In thousands of orders of events; HYPOTHESIS_EXAMPLES=5000 for a long run."""
    examples = int(os.environ.get("HYPOTHESIS_EXAMPLES", "50"))
    run_state_machine_as_test(
        Keys,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=examples <= 50,
            suppress_health_check=list(HealthCheck),
        ),
    )
