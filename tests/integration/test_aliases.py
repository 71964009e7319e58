"""Everything about a key happens on the alias that `using` names, and nothing of it elsewhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.utils import timezone

from django_idempotency import NotResolvable, Operation, OutcomeUnknown, get_operation, idempotent, run_once
from django_idempotency.engine.protocol.outcomes import Claimed, Snapshot
from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance import lookups
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.maintenance.resolution import close_with, record_outcome, release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import a_claim
from tests.heard import heard
from tests.shopapp.models import Order

pytestmark = pytest.mark.django_db(databases=["default", "other"])
HELD: dict[str, Any] = {
    "scope": "s",
    "key": "k",
    "operation": "pay",
    "using": "other",
    "lease": 60,
    "on_abandoned": "hold",
}


def depths() -> tuple[int, int]:
    """How many transactions are open on each alias, the test's own included."""
    return len(connections["default"].atomic_blocks), len(connections["other"].atomic_blocks)


def charge(operation: Operation) -> Any:
    return operation.call("charge", fails)


def fails() -> Any:
    raise OSError("the gateway hung up")


@pytest.fixture
def in_doubt() -> IdempotencyKey:
    with pytest.raises(OSError, match="hung up"):
        run_once(charge, **HELD)
    with pytest.raises(OutcomeUnknown):
        run_once(charge, **HELD)
    assert not IdempotencyKey.objects.using("default").exists()
    return IdempotencyKey.objects.using("other").get()


def test_a_person_releases(in_doubt: IdempotencyKey) -> None:
    """The trail keeps the call that was in doubt."""
    release_for_retry(in_doubt)
    in_doubt.refresh_from_db()
    (made,) = decisions_of(in_doubt)
    assert [step["name"] for step in made.steps] == ["charge"]
    assert run_once(lambda operation: operation.attempt, **HELD).value == 2


def test_a_person_records(in_doubt: IdempotencyKey) -> None:
    """Any JSON that Django can write."""
    record_outcome(in_doubt, "charge", {"until": timedelta(days=1)})
    assert run_once(charge, **HELD).value == {"until": "P1DT00H00M00S"}


def test_a_decision_that_cannot_be_carried_out_changes_nothing(in_doubt: IdempotencyKey) -> None:
    """It is one transaction on its alias."""
    with pytest.raises(NotResolvable, match="'refund' is not in doubt"):
        record_outcome(in_doubt, "refund", 1)
    expires_at = in_doubt.expires_at
    in_doubt.refresh_from_db()
    assert in_doubt.expires_at == expires_at


def test_a_person_closes(in_doubt: IdempotencyKey) -> None:
    snapshot = Snapshot(status_code=200, headers=(), body=b"refunded")
    close_with(in_doubt, snapshot)
    assert run_once(charge, **HELD).value == "refunded"


def test_the_work_runs_in_a_transaction_of_its_alias() -> None:
    """Of that one only."""
    before = depths()
    assert run_once(depths, scope="s", key="k", using="other").value == [before[0], before[1] + 1]


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_retry_of_a_leased_key_claims_in_a_transaction_of_its_alias() -> None:
    """Without it, two retries at once could both lock the row, one after the other, and run."""
    options: dict[str, Any] = {**HELD, "on_abandoned": "retry"}
    with pytest.raises(OSError, match="hung up"):
        run_once(charge, **options)
    seen: set[tuple[int, int]] = set()

    def look(execute: Any, *args: Any) -> Any:
        seen.add(depths())
        return execute(*args)

    with connections["other"].execute_wrapper(look):
        assert run_once(lambda operation: operation.attempt, **options).value == 2
    assert seen == {(0, 0), (0, 1), (0, 2)}


@pytest.mark.only_on("mysql")
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_call_begins_in_a_transaction_of_its_alias() -> None:
    """InnoDB locks the key before it adds the step. A takeover cannot come between the two."""
    seen: list[tuple[int, int]] = []

    def look(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("INSERT") and IdempotencyStep._meta.db_table in sql:
            seen.append(depths())
        return execute(sql, *args)

    with connections["other"].execute_wrapper(look), pytest.raises(OSError, match="hung up"):
        run_once(charge, **HELD)
    ((of_default, of_other),) = seen
    assert of_default == 0
    assert of_other > 0


@pytest.mark.parametrize("leased", [False, True])
def test_work_without_protection(leased: bool) -> None:
    """Switched off, the transactions stay where they were."""
    before = depths()

    def work(operation: Operation | None = None) -> Any:
        return depths() if operation is None else (operation.attempt, operation.write("look", depths))

    with override_settings(IDEMPOTENCY={"ENABLED": False}):
        options: dict[str, Any] = {"using": "other", "operation": "look", **({"lease": 60} if leased else {})}
        result = run_once(work, scope="s", key="k", **options)
    expected: Any = (before[0], before[1] + 1)
    assert (result.value, result.replayed) == ((1, expected) if leased else expected, False)


def test_a_leased_view_without_a_key() -> None:
    before = depths()
    seen: list[Any] = []

    @idempotent(lease=60, using="other", required=False)
    def view(request: HttpRequest) -> HttpResponse:
        operation = get_operation(request)
        seen.append(operation.write("look", lambda *, extra: (depths(), extra), extra="kept"))
        seen.append(operation.call("ask", lambda *, extra: extra, extra="kept"))
        return HttpResponse()

    view(RequestFactory().post("/"))
    assert seen == [((before[0], before[1] + 1), "kept"), "kept"]


def test_what_is_stuck_is_listed_up_to_a_limit() -> None:
    store = store_for("other")
    past = timezone.now() - timedelta(hours=1)
    with transaction.atomic(using="other"):
        for number in range(3):
            claimed = store.claim(a_claim(key=str(number), lease=60.0))
            assert isinstance(claimed, Claimed)
            store.journal.start_call(claimed, "charge", again=False)
    IdempotencyKey.objects.using("other").update(locked_until=past)
    assert (len(lookups.stuck(using="other")[:2]), len(lookups.in_doubt(using="other")[:2])) == (2, 2)
    assert (lookups.stuck(using="other").count(), lookups.in_doubt(using="other").count()) == (3, 3)


def test_a_server_error_rolls_its_alias_back() -> None:
    """What the view has written there, and the claim."""

    @idempotent(using="other")
    def view(request: HttpRequest) -> HttpResponse:
        Order.objects.using("other").create()
        return HttpResponse(status=503)

    assert view(RequestFactory().post("/", headers={"Idempotency-Key": "k"})).status_code == 503
    assert not Order.objects.using("other").exists()
    assert not IdempotencyKey.objects.using("other").exists()


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_an_event_waits_for_the_commit_of_its_alias() -> None:
    """And is not told if that one is rolled back."""
    with heard("completed") as told:
        for key, rolls_back in (("kept", False), ("rolled-back", True)):
            with transaction.atomic(using="other"):
                run_once(depths, scope="s", key=key, using="other")
                assert key not in [event["identity"].key for event in told]
                transaction.set_rollback(rolls_back, using="other")
    assert [event["identity"].key for event in told] == ["kept"]
