"""A key whose call was made does not complete by accident: the answer is sent, and the key stays half done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client

from django_idempotency import IdempotencyConfigurationError, Operation, get_operation, run_once
from django_idempotency.engine.execution import attempt as attempt_module
from django_idempotency.maintenance import half_done, in_doubt, needs_attention
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, as_if_killed, breaks, row
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]
Post = Callable[..., HttpResponse]


@pytest.fixture
def post(client: Client) -> Post:
    def send(path: str = "/hooked?status=200") -> Any:
        return client.post(path, {"amount": 5}, content_type="application/json", headers={"Idempotency-Key": "k"})

    return send


def charge(operation: Operation) -> Any:
    return operation.call("charge", GATEWAY.charge, operation.derive_key("charge"))


def order(operation: Operation) -> Any:
    return operation.write("order", Order.objects.create, reference="59").pk


def swallows(step: str) -> Callable[[Any], str]:
    """A view of an HTML app: it charges, catches the error of a later step, and says so with a 200."""

    def goes_on(request: Any) -> str:
        operation = get_operation(request)
        assert operation is not None
        charge(operation)
        try:
            getattr(operation, step)("order", breaks)
        except Broken:
            return "a problem occurred"
        raise AssertionError

    return goes_on


def dies_after_the_charge(post: Post) -> None:
    def dies(request: Any) -> None:
        charge(get_operation(request))  # type: ignore[arg-type]
        breaks()

    HOOKS["view"] = dies
    with pytest.raises(Broken):
        post()
    as_if_killed()


def assert_not_kept(answer: HttpResponse, status: int = 200) -> None:
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (status, "false")
    assert (row().status, half_done().count()) == ("failed", 1)


class TestAWriteThatRaised:
    def test_the_answer_is_sent_and_not_kept(self, post: Post) -> None:
        """The retry runs again, makes no second charge, and can end it."""
        HOOKS["view"] = swallows("write")
        assert_not_kept(post())
        assert str(row().last_error).endswith(": tests.leases.Broken: line 19 of tests.leases.breaks")
        HOOKS["view"] = lambda request: [charge(request.idempotency), order(request.idempotency)]
        assert post().headers["Idempotency-Replayed"] == "false"
        assert (row().status, GATEWAY.calls, half_done().count()) == ("completed", 1, 0)
        assert post().headers["Idempotency-Replayed"] == "true"

    def test_without_a_call_nothing_is_at_stake(self, post: Post) -> None:
        """The view has dealt with it."""

        def writes_in_vain(request: Any) -> str:
            with pytest.raises(Broken):
                request.idempotency.write("order", breaks)
            return "written otherwise"

        HOOKS["view"] = writes_in_vain
        post()
        assert row().status == "completed"

    def test_a_read_that_raised_is_no_write(self, post: Post) -> None:
        """It has changed nothing."""
        HOOKS["view"] = swallows("fetch")
        post()
        assert row().status == "completed"


class TestAnAnswerBeforeTheSteps:
    def test_a_condition_of_the_view_does_not_complete_the_key(self, post: Post) -> None:
        """The basket is empty: it was ordered, as far as the charge."""
        dies_after_the_charge(post)
        HOOKS["view"] = lambda request: "the basket is empty"
        assert_not_kept(post())
        assert "without asking for charge, which an earlier attempt has recorded" in str(row().last_error)

    def test_nor_does_one_behind_the_first_step(self, post: Post) -> None:
        """Charge and order are there; the view asks for the charge alone."""
        HOOKS["view"] = lambda request: (charge(request.idempotency), order(request.idempotency), breaks())
        with pytest.raises(Broken):
            post()
        HOOKS["view"] = lambda request: charge(request.idempotency)
        assert_not_kept(post())

    def test_a_call_in_doubt_counts_too(self, post: Post) -> None:
        """It may have happened."""
        GATEWAY.after = breaks
        HOOKS["view"] = lambda request: charge(request.idempotency)
        with pytest.raises(Broken):
            post()
        GATEWAY.reset()
        HOOKS["view"] = lambda request: "the basket is empty"
        assert post().status_code == 200
        assert (row().status, in_doubt().count()) == ("failed", 1)

    def test_a_read_need_not_be_asked_for(self, post: Post) -> None:
        """The retry may do without the rate."""
        HOOKS["view"] = lambda r: (r.idempotency.fetch("rate", lambda: 1.5), charge(r.idempotency), breaks())
        with pytest.raises(Broken):
            post()
        HOOKS["view"] = lambda request: charge(request.idempotency)
        post()
        assert row().status == "completed"

    def test_a_read_whose_result_never_arrived_is_no_matter(self, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
        """As when a signal's exception strikes between its COMMIT and its return."""
        monkeypatch.setattr(attempt_module, "as_stored", breaks)

        def does_without(request: Any) -> str:
            with pytest.raises(Broken):
                request.idempotency.fetch("rate", lambda: 1.5)
            return "without a rate"

        HOOKS["view"] = does_without
        post()
        assert row().status == "completed"

    def test_who_reads_the_results_has_asked(self, post: Post) -> None:
        """The view knows what was done, and decides."""
        dies_after_the_charge(post)
        HOOKS["view"] = lambda request: sorted(request.idempotency.results)
        assert post().status_code == 200
        assert row().status == "completed"

    def test_reconcile_may_decide(self, post: Post) -> None:
        """Its response is a decision of the project, not an accident."""
        HOOKS["between"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        as_if_killed()
        HOOKS["reconcile"] = lambda operation: HttpResponse("refunded")
        assert post("/pay/reconcile").content == b"refunded"
        assert row().status == "completed"

    def test_after_reconcile_the_work_has_to_ask(self, post: Post) -> None:
        """What `reconcile` has recorded is recorded for the work."""
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        HOOKS["reconcile"] = lambda operation: operation.call("charge", lambda: {"charge": "found"}) and None
        HOOKS["between"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        step = IdempotencyStep.objects.get()
        assert (step.finished_at is None, half_done().count()) == (False, 1)


# --- what `reconcile` and the end of a view leave


def run(view: Callable[[Operation], Any], reconcile: Callable[[Operation], Any] | None = None) -> Any:
    options: dict[str, Any] = {"lease": 60, "on_abandoned": "hold", "reconcile": reconcile}
    return run_once(view, scope="s", key="k", operation="pay", **options).value


@pytest.fixture
def doubt() -> None:
    """A charge that timed out."""
    with pytest.raises(Broken):
        run(lambda operation: operation.call("charge", breaks))


@pytest.mark.usefixtures("doubt")
def test_a_call_that_it_makes_in_vain_is_in_doubt() -> None:
    """The view knows, and can make the call again."""

    def refund(operation: Operation) -> None:
        operation.call("charge", lambda: "found")
        with pytest.raises(Broken):
            operation.call("refund", breaks)

    seen = run(lambda made: [made.in_doubt, made.call("refund", lambda: "refunded"), made.in_doubt], refund)
    assert seen == [["refund"], "refunded", []]


@pytest.mark.parametrize("status", [400, 402, 202])
@pytest.mark.urls("tests.leased_urls")
def test_a_view_that_catches_a_timeout_cannot_answer(post: Any, status: int) -> None:
    """Neither "payment failed" nor "accepted" is kept while nobody knows whether the charge took effect."""
    GATEWAY.reset()
    GATEWAY.after = breaks

    def is_cancelled(request: Any) -> str:
        operation = get_operation(request)
        with pytest.raises(Broken):
            operation.call("charge", GATEWAY.charge, "k")
        return "caught"

    HOOKS.update(view=is_cancelled)
    answers = [post(f"/hooked/hold?status={status}") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, 409]
    assert (needs_attention().count(), len(GATEWAY.charges)) == (1, 1)
    assert row().last_error == "The work answered, and it is unknown whether charge took effect."


def test_a_coroutine_that_nobody_awaits_is_no_result() -> None:
    """The charge has not been made: the view must not go on as if it had, and the retry neither."""

    async def charge() -> None:
        raise AssertionError

    coroutine = charge()
    with pytest.raises(IdempotencyConfigurationError, match=r"await operation\.acall\('charge'"):
        run(lambda operation: operation.call("charge", lambda: coroutine))
    coroutine.close()
    assert needs_attention().count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [False, True])
def test_a_view_that_leaves_autocommit_off_is_refused(fails: bool) -> None:
    """Its end would never be committed, although the client was told 201."""

    def leaves_it_off(operation: Operation) -> None:
        transaction.set_autocommit(False)
        if fails:
            raise Broken

    try:
        with pytest.raises(Broken if fails else IdempotencyConfigurationError):
            run(leaves_it_off)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    connection.close()
    assert IdempotencyKey.objects.get().status == "in_progress"  # it waits for its lease
