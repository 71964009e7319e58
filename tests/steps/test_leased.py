"""Leased mode on the database at hand: failure, takeover, doubt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import override_settings
from django.utils import timezone

from django_idempotency import (
    IdempotencyConfigurationError,
    OutcomeUnknown,
    get_operation,
)
from django_idempotency.maintenance import needs_attention
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, as_if_killed, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


class TestFailure:
    @pytest.mark.parametrize("hook", ["between", "at the end"])
    def test_an_exception_leaves_the_key_failed_with_its_steps(self, post: Post, hook: str) -> None:
        """The error is kept without its secrets; the retry runs at once and calls nothing again."""
        HOOKS[hook] = breaks
        with pytest.raises(Broken):
            post("/pay")
        assert (row().status, row().locked_until, row().attempt) == ("failed", None, 1)
        assert row().last_error == "tests.leases.Broken: line 19 of tests.leases.breaks"
        HOOKS.clear()
        retry = post("/pay")
        assert (retry.status_code, retry.json()["attempt"]) == (201, 2)
        assert (GATEWAY.calls, len(GATEWAY.charges), Order.objects.count()) == (1, 1, 1)
        assert retry.json()["order"] == Order.objects.get().pk
        assert (row().status, row().attempt, row().last_error) == ("completed", 2, None)
        assert post("/pay").content == retry.content

    @pytest.mark.parametrize("status", [500, 503, 401, 429])
    def test_an_answer_that_is_not_final_leaves_it_failed(self, post: Post, status: int) -> None:
        """With the status as the reason."""
        assert post(f"/pay?status={status}").status_code == status
        assert (row().status, row().last_error) == ("failed", f"The view answered {status}.")
        assert post(f"/pay?status={status}").json()["attempt"] == 2
        assert (GATEWAY.calls, Order.objects.count()) == (1, 1)

    def test_a_write_that_fails_is_rolled_back_with_its_step(self, post: Post) -> None:
        """And runs again in the retry."""

        def half(operation: Any) -> None:
            Order.objects.create(reference="half")
            raise Broken

        HOOKS["view"] = lambda request: request.idempotency.write("half", half, None)
        with pytest.raises(Broken):
            post("/hooked")
        assert (Order.objects.count(), IdempotencyStep.objects.count()) == (0, 0)
        HOOKS["view"] = lambda request: request.idempotency.write("half", lambda: "done")
        assert post("/hooked").json() == {"result": "done"}

    def test_an_answer_about_a_row_that_is_gone_is_kept(self, post: Post) -> None:
        """The view is told by `DoesNotExist`, as by a result."""

        def view(request: Any) -> str:
            try:
                order = request.idempotency.write("order", Order.objects.create)
            except Order.DoesNotExist:
                return "gone"
            raise Broken(order)

        HOOKS["view"] = view
        with pytest.raises(Broken):
            post("/hooked")
        Order.objects.all().delete()
        assert post("/hooked").json() == {"result": "gone"}
        assert row().status == "completed"

    def test_a_result_is_kept_for_ttl_from_its_completion(self, post: Post) -> None:
        """However long the view has run."""
        HOOKS["at the end"] = lambda operation: IdempotencyKey.objects.update(expires_at=timezone.now())
        post("/pay")
        assert row().expires_at > timezone.now() + timedelta(hours=23)
        assert post("/pay").headers["Idempotency-Replayed"] == "true"


class TestDoubt:
    def test_a_call_that_raises_is_in_doubt(self, post: Post) -> None:
        """A timeout: nobody knows. Under "retry" it is made again, with the same derived key."""
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay")
        step = IdempotencyStep.objects.get()
        assert (step.name, step.finished_at, step.error) == (
            "charge",
            None,
            "tests.leases.Broken: line 19 of tests.leases.breaks",
        )
        began = step.started_at
        GATEWAY.after = lambda: None
        assert post("/pay").status_code == 201
        assert (GATEWAY.calls, len(GATEWAY.charges)) == (2, 1)
        step.refresh_from_db()
        # A person may have to look the first call up: its time and its error stay.
        assert step.started_at == began
        assert (step.attempt, step.error, step.finished_at is None) == (
            2,
            "tests.leases.Broken: line 19 of tests.leases.breaks",
            False,
        )

    def test_held_it_is_not_made_again(self, post: Post) -> None:
        """The worker died in it: 409 until somebody knows. If the call raised: tests/contracts."""
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold")
        as_if_killed()
        GATEWAY.after = lambda: None
        for _ in range(3):
            answer = post("/pay/hold")
            assert (answer.status_code, answer.json()["code"]) == (409, "outcome-unknown")
            assert answer.headers["Retry-After"] == "60"
        assert (GATEWAY.calls, row().attempt) == (1, 1)

    def test_held_a_crash_without_a_call_in_doubt_runs_again(self, post: Post) -> None:
        """The charge has its result, so it is safe to go on from there."""
        HOOKS["between"] = breaks
        with pytest.raises(Broken):
            post("/pay/hold")
        as_if_killed()
        HOOKS.clear()
        assert post("/pay/hold").json()["attempt"] == 2
        assert (GATEWAY.calls, Order.objects.count()) == (1, 1)

    def test_an_expired_key_starts_afresh(self, post: Post) -> None:
        """Its steps are gone with it."""
        post("/pay")
        IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
        answer = post("/pay")
        assert (answer.headers["Idempotency-Replayed"], answer.json()["attempt"]) == ("false", 2)
        assert (GATEWAY.calls, Order.objects.count(), IdempotencyStep.objects.count()) == (2, 2, 2)
        assert set(IdempotencyStep.objects.values_list("attempt", flat=True)) == {2}


class TestReconcile:
    @pytest.fixture
    def in_doubt(self, post: Post) -> None:
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        as_if_killed()
        GATEWAY.after = lambda: None

    def test_its_response_is_final(self, post: Post, in_doubt: None) -> None:
        """It has asked the gateway; the view does not run."""
        seen: list[Any] = []

        def look_up(operation: Any) -> HttpResponse:
            seen.append((operation.in_doubt, operation.derive_key("charge") in GATEWAY.charges, operation.attempt))
            assert get_operation(operation.request) is operation
            return HttpResponse("charged", status=201)

        HOOKS["reconcile"] = look_up
        first, second = post("/pay/reconcile"), post("/pay/reconcile")
        assert (first.status_code, first.content, second.content) == (201, b"charged", b"charged")
        assert second.headers["Idempotency-Replayed"] == "true"
        assert seen == [(("charge",), True, 2)]
        assert (GATEWAY.calls, Order.objects.count()) == (1, 0)

    def test_it_may_record_what_it_found_and_let_the_view_go_on(self, post: Post, in_doubt: None) -> None:
        """The call is answered from its record."""

        def record(operation: Any) -> None:
            operation.call("charge", lambda: {"charge": "found"})

        HOOKS["reconcile"] = record
        assert post("/pay/reconcile").json()["charge"] == "found"
        assert (GATEWAY.calls, Order.objects.get().reference) == (1, "found")

    def test_if_it_fails_the_doubt_remains(self, post: Post, in_doubt: None) -> None:
        """The next retry asks again."""
        HOOKS["reconcile"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        assert (row().status, GATEWAY.calls) == ("failed", 1)
        HOOKS["reconcile"] = lambda operation: HttpResponse("now we know")
        assert post("/pay/reconcile").content == b"now we know"

    @pytest.mark.parametrize(("path", "starts_anew"), [("/pay/reconcile", True), ("/pay/reconcile-keyed", False)])
    def test_since_when_a_call_is_in_doubt(self, post: Post, path: str, starts_anew: bool) -> None:
        """Under "hold", it is repeated once `reconcile` has settled its first start, whose age would let a third one
        start beside the second. Under "retry-keyed", the first start says how long the gateway remembers its key.
        """
        GATEWAY.after = breaks
        seen: list[Any] = []
        HOOKS["reconcile"] = lambda operation: seen.append(operation.doubts)
        with pytest.raises(Broken):
            post(path)
        IdempotencyStep.objects.update(started_at=timezone.now() - timedelta(hours=3))
        for _ in range(2):
            with pytest.raises(Broken):
                post(path)
        assert [doubts.keys() for doubts in seen] == [{"charge"}, {"charge"}]
        first, second = (doubts["charge"] for doubts in seen)
        assert timedelta(hours=3) < first.age < timedelta(hours=4)
        assert (second.age < timedelta(hours=1)) is starts_anew
        assert (second.started_at == IdempotencyStep.objects.get().started_at) is (not starts_anew)
        assert (first.keyed, second.keyed, GATEWAY.calls) == (True, True, 3)

    def test_what_the_view_raises_is_the_views(self, post: Post, in_doubt: None) -> None:
        """Its own `run_once` may have raised the same exception."""

        def raises(operation: Any) -> None:
            raise OutcomeUnknown("of another key")

        HOOKS.update({"reconcile": lambda operation: None, "between": raises})
        with pytest.raises(OutcomeUnknown, match="of another key"):
            post("/pay/reconcile")

    def test_a_call_that_it_looks_up_in_vain_stays_in_doubt_since_then(self, post: Post, in_doubt: None) -> None:
        """Looking it up is no start."""
        IdempotencyStep.objects.update(started_at=timezone.now() - timedelta(hours=3))
        before = IdempotencyStep.objects.get().started_at
        HOOKS["reconcile"] = lambda operation: operation.call("charge", breaks)
        with pytest.raises(Broken):
            post("/pay/reconcile")
        seen: list[Any] = []
        HOOKS["reconcile"] = lambda operation: seen.append(operation.doubts) or HttpResponse()
        post("/pay/reconcile")
        assert [doubt.started_at for doubt in seen[0].values()] == [before]

    @pytest.mark.parametrize(
        ("returned", "problem"),
        [
            *((HttpResponse(status=status), f"answered {status}, which is not final") for status in (429, 500, 503)),
            ("paid", "reconcile returned 'paid'; return an HttpResponse, or None"),
        ],
    )
    def test_an_answer_that_is_not_final_is_an_error(
        self, post: Post, in_doubt: None, returned: Any, problem: str
    ) -> None:
        """The gateway cannot be asked now. Kept, the answer would be replayed for ever, and nobody would ask again."""
        HOOKS["reconcile"] = lambda operation: returned
        with pytest.raises(IdempotencyConfigurationError, match=problem):
            post("/pay/reconcile")
        assert needs_attention().count() == 1
        HOOKS["reconcile"] = lambda operation: HttpResponse("now we know")
        assert post("/pay/reconcile").content == b"now we know"

    def test_it_is_asked_about_a_dead_worker_without_doubts(self, post: Post) -> None:
        """Only the project knows what else the view has done."""
        HOOKS["between"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        as_if_killed()
        HOOKS["reconcile"] = lambda operation: HttpResponse(f"doubts: {operation.in_doubt}")
        assert post("/pay/reconcile").content == b"doubts: ()"

    def test_a_clean_failure_is_not_its_business(self, post: Post) -> None:
        """Nothing was abandoned and nothing is in doubt."""
        HOOKS["between"] = breaks
        HOOKS["reconcile"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        HOOKS.pop("between")
        assert post("/pay/reconcile").json()["attempt"] == 2


class TestOtherModes:
    def test_an_atomic_view_holds_a_call_in_doubt(self, post: Post) -> None:
        """It has no derived keys to make the call safe."""
        HOOKS["view"] = lambda request: request.idempotency.call("charge", breaks)
        with pytest.raises(Broken):
            post("/changed")
        assert post("/changed/atomic").json()["code"] == "outcome-unknown"

    @pytest.mark.parametrize("verb", ["call", "write"])
    def test_an_atomic_view_holds_finished_steps(self, post: Post, verb: str) -> None:
        """It does not know them, and would do them again: charge twice, or write twice."""
        HOOKS["view"] = lambda request: (getattr(request.idempotency, verb)("a", lambda: 1), breaks())
        with pytest.raises(Broken):
            post("/changed")
        HOOKS["view"] = lambda request: Order.objects.create().pk
        assert post("/changed/atomic").json()["code"] == "outcome-unknown"
        assert (row().status, IdempotencyStep.objects.count(), Order.objects.count()) == ("failed", 1, 0)

    def test_an_atomic_answer_that_is_not_final_frees_the_key(self, post: Post) -> None:
        """As if it had never been seen."""
        HOOKS["view"] = breaks
        with pytest.raises(Broken):
            post("/changed")
        HOOKS["view"] = lambda request: None
        assert post("/changed/atomic?status=429").status_code == 429
        assert IdempotencyKey.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_a_leased_view_is_refused_without_autocommit(post: Post) -> None:
    """Its claim could not commit first."""
    transaction.set_autocommit(False)
    try:
        with pytest.raises(IdempotencyConfigurationError, match="reached inside a transaction"):
            post("/pay")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert not IdempotencyKey.objects.exists()


# --- changes beside the steps


class TestDevelopment:
    @override_settings(DEBUG=True)
    def test_a_change_outside_of_a_step_is_warned_about(self, post: Post) -> None:
        """It would be done again by every retry; reading is fine, and so are the steps."""

        def stray(operation: Any) -> None:
            Order.objects.count()
            with pytest.warns(RuntimeWarning, match=r"changed data outside of operation.write\(\): .INSERT INTO"):
                Order.objects.create()
            with connection.cursor() as cursor, pytest.warns(RuntimeWarning, match="changed data"):
                cursor.executemany("UPDATE shopapp_order SET amount = %s WHERE reference = %s", [(1, "a"), (2, "b")])

        HOOKS["between"] = HOOKS["at the end"] = stray
        assert post("/pay").status_code == 201

    @override_settings(DEBUG=True)
    def test_what_the_package_writes_is_no_stray_write(self, post: Post) -> None:
        """Warnings are errors in these tests."""

        def between(operation: Any) -> None:
            operation.renew()
            operation.refer_to("order", "59")

        HOOKS["between"] = between
        assert post("/pay").status_code == 201

    def test_without_debug_nobody_looks(self, post: Post) -> None:
        """Warnings are errors in these tests."""
        HOOKS["between"] = lambda operation: Order.objects.create() and None
        assert post("/pay").status_code == 201
