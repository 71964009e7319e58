"""Recovery without the client: `reconcile` is asked about each key that needs attention, under the key's fence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.utils import timezone

from django_idempotency import (
    IdempotencyConfigurationError,
    LeaseLost,
    Result,
    ResultNotStorable,
    once,
)
from django_idempotency.engine.execution.claiming import claim_request_for
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.maintenance import Asked, Recovered, in_doubt, recover_idempotency_keys
from django_idempotency.maintenance.decisions import Decision, decisions_of
from django_idempotency.maintenance.resolution import close_with, release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.at_rest import NEW, OLD
from tests.leased_urls import GATEWAY, HOOKS, leave_in_doubt, reconciled
from tests.leases import Broken, as_if_killed, breaks, row
from tests.recovering import only, records, recover
from tests.shopapp.models import Order
from tests.step_rows import add_step
from tests.unreachable import READ_ONLY, reached_by

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]
Post = Callable[..., Any]


@pytest.fixture
def key() -> str:
    return "k"


@pytest.fixture
def doubt(post: Post) -> None:
    """A charge that took effect, and whose answer was lost."""
    leave_in_doubt(post, "/pay/reconcile")


@pytest.mark.usefixtures("doubt")
def test_the_worker_of_the_call_stays_named() -> None:
    """A person asks whether it is dead, and the recovery always is."""
    IdempotencyKey.objects.update(worker="web-3:4711")
    HOOKS["reconcile"] = lambda operation: None
    assert only().outcome == "left"
    assert (row().worker, row().attempt) == ("web-3:4711", 2)


@pytest.mark.usefixtures("doubt")
def test_options_that_contradict_each_other_are_the_reason(settings: Any) -> None:
    """The other operations' keys are reached."""
    settings.IDEMPOTENCY = {"TTL": 60}
    asked = only()
    assert (asked.outcome, asked.reason.partition(":")[0]) == ("left", "its options cannot be used")


def test_a_key_that_was_completed_meanwhile_and_cannot_be_decrypted_is_left(post: Post, settings: Any) -> None:
    """The next key is reached."""
    for key in ("k1", "k2", "k3"):
        leave_in_doubt(post, "/pay/reconcile", key=key)

    def completes_another(operation: Any) -> None:
        for other in IdempotencyKey.objects.filter(key="k2").exclude(status="completed"):
            settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
            close_with(other, Snapshot(status_code=200, headers=(), body=b""))
            settings.IDEMPOTENCY = {}

    HOOKS["reconcile"] = completes_another
    IdempotencyKey.objects.filter(key="k2").update(updated_at=timezone.now() - timedelta(hours=1))
    IdempotencyKey.objects.filter(key="k1").update(updated_at=timezone.now() - timedelta(hours=2))
    _, told = recover()
    assert [(asked.outcome, "ENCRYPTION_KEYS" in asked.reason) for asked in told] == [
        ("left", False),
        ("left", True),
        ("left", False),
    ]


@pytest.mark.usefixtures("doubt")
class TestWhatReconcileDoes:
    def test_its_response_completes_the_key(self, post: Post) -> None:
        """The client's next retry gets it, with the payload that was stored; the view does not run."""
        seen: list[Any] = []

        def settle(operation: Any) -> HttpResponse:
            seen.append((operation.request, operation.in_doubt, operation.results, operation.attempt))
            operation.write("order", Order.objects.create, reference=operation.key)
            return HttpResponse("settled", status=201)

        HOOKS["reconcile"] = settle
        before = timezone.now().replace(microsecond=0)
        result, (asked,) = recover()
        assert result == Recovered(completed=1, failed=0, left=0, complete=True)
        assert str(asked) == f"{row().reference} POST pay/reconcile: completed, reconcile has answered 201."
        assert seen == [(None, ("charge",), {}, 2)]
        answer = post("/pay/reconcile")
        assert (answer.status_code, answer.content, answer.headers["Idempotency-Replayed"]) == (201, b"settled", "true")
        assert (GATEWAY.calls, Order.objects.get().reference) == (1, "k")
        (made,) = decisions_of(row())
        by, detail = "recover_idempotency_keys", "reconcile has answered 201"
        assert made == Decision(action="recover", at=made.at, by=by, attempt=2, detail=detail)
        assert before <= made.moment <= timezone.now()

    def test_another_payload_is_still_a_mismatch(self, post: Post, client: Any) -> None:
        """The recovery knows no payload, and keeps the stored fingerprint."""
        HOOKS["reconcile"] = lambda operation: HttpResponse("settled")
        recover()
        assert client.post("/pay/reconcile", {"amount": 6}, headers={"Idempotency-Key": "k"}).status_code == 422

    def test_none_leaves_the_key_as_it_was(self, post: Post) -> None:
        """Failed, with its doubt and its last error; the retry asks again."""
        before = row()
        HOOKS["reconcile"] = lambda operation: None
        result, (asked,) = recover()
        assert result == Recovered(completed=0, failed=0, left=1, complete=True)
        assert asked.reason == "reconcile has left the key to the next retry. In doubt: charge"
        after = row()
        assert (after.status, after.last_error, after.policy) == ("failed", before.last_error, "hold")
        assert in_doubt().get() == after
        assert (post("/pay/reconcile").status_code, len(GATEWAY.charges)) == (201, 1)

    def test_what_it_records_is_kept(self, post: Post) -> None:
        """The retry goes on behind the recorded call."""
        HOOKS["reconcile"] = records
        result, (asked,) = recover()
        assert (result.left, asked.outcome) == (1, "left")  # half done: the order is missing
        assert asked.reason == "reconcile has recorded charge, and has left the key to the next retry"
        assert [made.detail for made in decisions_of(row())] == [asked.reason]
        HOOKS["reconcile"] = lambda operation: None
        assert (post("/pay/reconcile").json()["charge"], GATEWAY.calls) == ("found", 1)

    def test_what_it_records_before_it_raises_is_in_the_trail(self) -> None:
        """It is committed, and the next run finds the call without a doubt."""

        def records_and_breaks(operation: Any) -> None:
            records(operation)
            breaks()

        HOOKS["reconcile"] = records_and_breaks
        asked = only()
        assert (asked.outcome, row().unknown) == ("failed", 0)
        assert asked.reason.startswith("reconcile has recorded charge, and raised tests.leases.Broken: ")
        assert [made.detail for made in decisions_of(row())] == [asked.reason]

    def test_what_it_records_before_another_is_faster_is_in_the_trail(self) -> None:
        """The key is the other's by then, and its trail goes on."""

        def slow(operation: Any) -> HttpResponse:
            records(operation)
            IdempotencyKey.objects.update(locked_until="2020-01-01T00:00Z")
            close_with(row(), Snapshot(status_code=410, headers=(), body=b"by hand"), confirmed=True)
            return HttpResponse("late")

        HOOKS["reconcile"] = slow
        asked = only()
        assert (asked.outcome, asked.reason[:34]) == ("passed", "reconcile has recorded charge, and")
        assert [made.action for made in decisions_of(row())] == ["answer", "recover"]
        assert row().status_code == 410

    def test_if_it_raises_the_key_is_as_it_was(self, post: Post, caplog: pytest.LogCaptureFixture) -> None:
        """The doubt remains, and the next run asks again."""
        HOOKS["reconcile"] = breaks
        result, (asked,) = recover()
        assert result == Recovered(completed=0, failed=1, left=1, complete=True)
        assert asked.outcome == "failed"
        assert asked.reason == "reconcile raised tests.leases.Broken: line 19 of tests.leases.breaks"
        assert (row().status, in_doubt().count()) == ("failed", 1)
        assert "reconcile raised" in caplog.text
        HOOKS["reconcile"] = lambda operation: HttpResponse("settled")
        assert only().outcome == "completed"


def test_a_lost_value_that_it_enters_is_in_the_trail(post: Post) -> None:
    """Nobody has been in doubt about this call, and the value is not what the call returned."""
    GATEWAY.result = lambda key: object()
    with pytest.raises(ResultNotStorable):
        post("/pay/reconcile")
    HOOKS["reconcile"] = records
    asked = only()
    assert asked.reason == "reconcile has recorded charge, and has left the key to the next retry"
    assert [made.detail for made in decisions_of(row())] == [asked.reason]
    assert "found" in IdempotencyStep.objects.get().result


@pytest.mark.usefixtures("doubt")
class TestOneWinner:
    @pytest.mark.parametrize("how", ["a retry", "a recovery"])
    def test_the_key_is_in_progress_meanwhile(self, post: Post, how: str) -> None:
        """A retry gets a conflict, another recovery passes."""
        during: list[Any] = []

        def settle(operation: Any) -> HttpResponse:
            during.append(post("/pay/reconcile").status_code if how == "a retry" else recover()[1])
            return HttpResponse()

        HOOKS["reconcile"] = settle
        assert only().outcome == "completed"
        assert during == ([409] if how == "a retry" else [[]])

    def test_a_key_that_goes_before_its_claim_is_not_made_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An erasure comes between the look at the row and the claim."""

        def forgotten(*args: Any) -> Any:
            IdempotencyKey.objects.all().delete()
            return claim_request_for(*args)

        monkeypatch.setattr("django_idempotency.maintenance.recovery.claim_request_for", forgotten)
        assert (only().outcome, IdempotencyKey.objects.count()) == ("passed", 0)

    def test_a_recovery_that_was_taken_over_changes_nothing(self) -> None:
        """A person has decided while `reconcile` was asking, after its lease."""

        def slow(operation: Any) -> HttpResponse:
            IdempotencyKey.objects.update(locked_until="2020-01-01T00:00Z")
            close_with(row(), Snapshot(status_code=410, headers=(), body=b"by hand"))
            with pytest.raises(LeaseLost):
                operation.write("order", Order.objects.create)
            return HttpResponse("late")

        HOOKS["reconcile"] = slow
        assert only().outcome == "passed"
        assert (row().status_code, Order.objects.count()) == (410, 0)


@pytest.mark.usefixtures("doubt")
class TestBounds:
    def test_a_young_key_is_left_to_its_client(self) -> None:
        """Its age counts from the last change of its state."""
        result, told = recover(older_than=timedelta(minutes=1))
        assert (result, told) == (Recovered(completed=0, failed=0, left=0, young=1, complete=True), [])
        IdempotencyKey.objects.update(created_at="2020-01-01T00:00Z")
        result, told = recover(older_than=timedelta(minutes=1))
        assert (result.left, told) == (1, [])

    def test_time_and_a_signal_end_a_run(self) -> None:
        """Between two keys."""
        stop = Event()
        stop.set()
        for bound in ({"max_seconds": 0}, {"stop": stop}):
            assert recover(**bound) == (Recovered(completed=0, failed=0, left=1, complete=False), [])
        HOOKS["reconcile"] = lambda operation: HttpResponse()
        assert recover(max_seconds=60)[0].completed == 1


class TestWhatCannotBeAsked:
    def test_without_reconcile_they_are_one_count_an_operation(self, post: Post) -> None:
        """Ten thousand of them hold no run up: neither a query nor a line for each."""
        for path, key in (("/pay", "k1"), ("/pay", "k2"), ("/pay/hold", "k3")):
            leave_in_doubt(post, path, key=key)
        result, told = recover()
        assert (result.left, [(asked.operation, asked.keys) for asked in told]) == (
            3,
            [("POST pay", 2), ("POST pay/hold", 1)],
        )
        assert str(told[0]) == (
            "2 keys of POST pay: left, no imported view and no imported @once function has this operation= and a "
            "reconcile=. The keys wait until their clients retry or a person decides. Import a task's module with "
            "--import; run_once without the decorator cannot be found."
        )
        assert set(IdempotencyKey.objects.values_list("attempt", flat=True)) == {1}

    @pytest.mark.usefixtures("doubt")
    def test_a_write_in_doubt_is_for_a_person(self) -> None:
        """No called service could recognise its repetition."""
        row().steps.update(kind="write")
        assert only().reason.startswith("a write is in doubt")
        assert row().attempt == 1

    @pytest.mark.usefixtures("doubt")
    def test_a_claim_without_a_lease_is_for_a_person(self) -> None:
        """Its view has ended its own transaction."""
        IdempotencyKey.objects.update(
            attention_at=None, status="in_progress", locked_until=None, expires_at="2020-01-01T00:00Z"
        )
        assert only().outcome == "left"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.usefixtures("doubt")
    def test_not_inside_a_transaction(self) -> None:
        """What it records must be committed before the next call."""
        with transaction.atomic(), pytest.raises(IdempotencyConfigurationError, match="recover_idempotency_keys was"):
            recover()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("doubt")
def test_a_database_that_cannot_be_written_to_leaves_the_key() -> None:
    """It was nobody else's faster answer."""
    with reached_by(READ_ONLY[connection.vendor]):
        asked = only()
    assert (asked.outcome, asked.reason) == ("left", "the database cannot store a claim at the moment")


def test_a_dead_worker_is_asked_about(post: Post) -> None:
    """Stuck: in progress, and its lease is over."""
    HOOKS["between"] = breaks
    with pytest.raises(Broken):
        post("/pay/reconcile")
    as_if_killed()
    HOOKS["reconcile"] = lambda operation: HttpResponse(str(operation.results))
    assert only().outcome == "completed"
    assert b"charge" in post("/pay/reconcile").content


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
@pytest.mark.usefixtures("doubt")
def test_on_another_database() -> None:
    """Its keys only, and its trail, each in a transaction there."""
    create_key(operation="POST pay/reconcile", in_doubt=["charge"], using="other")
    HOOKS["reconcile"] = records
    result, (asked,) = recover(using="other")
    assert (result.left, asked.outcome) == (1, "left")
    other = IdempotencyKey.objects.using("other").get()
    assert [made.by for made in decisions_of(other)] == ["recover_idempotency_keys"]
    assert row().attempt == 1
    HOOKS["reconcile"] = lambda operation: HttpResponse()
    assert recover(using="other")[0] == Recovered(completed=1, failed=0, left=0, complete=True)
    assert row().status == "failed"


def test_a_trail_that_cannot_be_decrypted_does_not_hide_the_result(doubt: None, settings: Any) -> None:
    """The key is completed. Its new entry stands behind the sealed ones, which are readable once the key is back."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    release_for_retry(row())
    IdempotencyStep.objects.all().delete()
    IdempotencyKey.objects.update(last_error="made by a test")
    add_step(row())
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    HOOKS["reconcile"] = lambda operation: HttpResponse(b"found", status=201)
    asked: list[Asked] = []
    recovered = recover_idempotency_keys(older_than=0, progress=asked.append)
    assert row().status == "completed"
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW, OLD]}
    assert [made.action for made in decisions_of(row())] == ["release", "recover"]
    assert [one.outcome for one in asked] == ["completed"]
    assert (recovered.completed, recovered.failed, recovered.left) == (1, 0, 0)


@once(scope="s", key=lambda work: "k", operation="once.pay", lease=60, reconcile=reconciled)
def calls(work: Any, *, operation: Any) -> Any:
    return operation.call("charge", work)


def test_a_function_that_once_decorates_is_found() -> None:
    """Its reconcile returns a Result, which the next call gets."""
    with pytest.raises(Broken):
        calls(breaks)
    HOOKS["reconcile"] = lambda operation: Result({"id": 1}, replayed=False)
    assert only().outcome == "completed"
    assert calls(breaks) == {"id": 1}
