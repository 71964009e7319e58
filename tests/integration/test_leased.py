"""Leased mode on the database at hand: failure, takeover, doubt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.utils import timezone

from django_idempotency import IdempotencyConfigurationError, get_operation
from django_idempotency.maintenance import needs_attention
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.integration.leased_urls import GATEWAY, HOOKS, LEASE
from tests.leases import Broken, as_if_killed, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.leased_urls")]


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


@pytest.fixture
def tolerant(client: Any) -> Any:
    client.raise_request_exception = False
    return client


def test_a_leased_view_runs_once(post: Post) -> None:
    """Its steps are kept with the key; a retry gets the same bytes, with no lease left."""
    first, second = post("/pay"), post("/pay")
    assert (first.status_code, first.headers["Idempotency-Replayed"]) == (201, "false")
    assert (second.status_code, second.headers["Idempotency-Replayed"]) == (201, "true")
    assert second.content == first.content
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)
    assert (row().status, row().attempt, row().locked_until) == ("completed", 1, None)
    steps = IdempotencyStep.objects.order_by("pk").values_list("name", "kind", "attempt", "result")
    order = Order.objects.get()
    model = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}'
    assert list(steps) == [
        ("charge", "call", 1, f'{{"value": {{"charge": "{GATEWAY.charges[0]}"}}}}'),
        ("order", "write", 1, model),
    ]
    assert not IdempotencyStep.objects.filter(finished_at=None).exists()


def test_while_it_runs_the_claim_is_there_for_all_to_see(post: Post) -> None:
    """In progress, locked until the lease ends; no transaction is open around the view or its calls."""
    seen: list[Any] = []

    def look(*args: Any) -> None:
        current = row()
        seen.append((current.status, current.locked_until - current.created_at, len(connection.atomic_blocks)))

    GATEWAY.before = look
    HOOKS["at the end"] = look
    post("/pay")
    assert [status for status, _, _ in seen] == ["in_progress"] * 2
    assert all(abs(left - LEASE) < timedelta(seconds=5) for _, left, _ in seen)
    # pytest-django's own transaction only.
    assert {depth for _, _, depth in seen} == {1}


def test_another_payload_is_a_mismatch(post: Post) -> None:
    """Also while the key is failed: the fingerprint stays."""
    GATEWAY.before = breaks
    with pytest.raises(Broken):
        post("/pay", {"amount": 1})
    assert post("/pay", {"amount": 2}).status_code == 422


class TestFailure:
    @pytest.mark.parametrize("hook", ["between", "at the end"])
    def test_an_exception_leaves_the_key_failed_with_its_steps(self, post: Post, hook: str) -> None:
        """The error is kept without its secrets; the retry runs at once and calls nothing again."""
        HOOKS[hook] = breaks
        with pytest.raises(Broken):
            post("/pay")
        assert (row().status, row().locked_until, row().attempt) == ("failed", None, 1)
        assert row().last_error == "tests.leases.Broken: it broke, token=****"
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

    @pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
    def test_a_terminated_process_releases_the_key(self, post: Post, error: BaseException) -> None:
        """Servers turn signals into SystemExit: the lease is not waited for."""

        def stop(operation: Any) -> None:
            raise error

        HOOKS["between"] = stop
        with pytest.raises(type(error)):
            post("/pay")
        assert (row().status, row().locked_until) == ("failed", None)

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

    def test_a_result_is_kept_for_ttl_from_its_completion(self, post: Post) -> None:
        """However long the view has run."""
        HOOKS["at the end"] = lambda operation: IdempotencyKey.objects.update(expires_at=timezone.now())
        post("/pay")
        assert row().expires_at > timezone.now() + timedelta(hours=23)
        assert post("/pay").headers["Idempotency-Replayed"] == "true"

    def test_a_failed_key_is_kept_for_ttl_from_its_failure(self, post: Post) -> None:
        """Not from the first claim: an old key that was taken over must not be forgotten at its completion."""
        HOOKS["between"] = breaks
        with pytest.raises(Broken):
            post("/pay")
        old = timezone.now() - timedelta(days=2)
        IdempotencyKey.objects.update(created_at=old)
        HOOKS.clear()
        post("/pay")
        assert row().expires_at > timezone.now() + timedelta(hours=23)


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
            "tests.leases.Broken: it broke, token=****",
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
            "tests.leases.Broken: it broke, token=****",
            False,
        )

    @pytest.mark.parametrize("crash", [False, True])
    def test_held_it_is_not_made_again(self, post: Post, crash: bool) -> None:
        """Whether the call raised or the worker died in it: 409 until somebody knows."""
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold")
        if crash:
            as_if_killed()
        GATEWAY.after = lambda: None
        for _ in range(3):
            answer = post("/pay/hold")
            assert (answer.status_code, answer.json()["title"]) == (
                409,
                "The outcome for this Idempotency-Key is unknown",
            )
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

    def test_a_live_lease_is_a_conflict_whatever_the_call(self, post: Post) -> None:
        """The worker may well still get its answer."""
        inner: list[Any] = []
        GATEWAY.before = lambda: inner.append(post("/pay/hold"))
        assert post("/pay/hold").status_code == 201
        assert [r.status_code for r in inner] == [409]
        assert inner[0].json()["title"] == "A request is outstanding for this Idempotency-Key"

    def test_a_conflict_says_when_the_lease_will_be_over(self, post: Post) -> None:
        """In whole seconds. Half a minute of the lease is left."""
        inner: list[Any] = []

        def in_half_a_minute() -> None:
            IdempotencyKey.objects.update(locked_until=timezone.now() + timedelta(seconds=30))
            inner.append(post("/pay").headers["Retry-After"])

        GATEWAY.before = in_half_a_minute
        assert post("/pay").status_code == 201
        assert 10 < int(inner[0]) <= 30

    def test_an_answer_to_an_exception_of_a_call_is_not_final(self, post: Post) -> None:
        """Whatever the view makes of it by raising; what it returns, it has decided."""

        def refused(request: Any) -> Any:
            try:
                request.idempotency.call("charge", breaks)
            except Broken:
                return "not charged, and we know it"

        HOOKS["view"] = refused
        assert post("/hooked/hold").status_code == 201
        assert row().status == "completed"

    def test_a_refusal_is_a_result(self, post: Post) -> None:
        """A declined card is returned, kept, and not tried again."""
        GATEWAY.result = lambda key: {"charge": None}
        HOOKS["view"] = lambda request: request.idempotency.call("charge", GATEWAY.charge, "k")
        assert post("/hooked").json() == {"result": {"charge": None}}
        assert post("/hooked").json() == {"result": {"charge": None}}
        assert GATEWAY.calls == 1

    def test_keys_in_doubt_do_not_expire(self, post: Post) -> None:
        """However old: after a day the same key must not charge again."""
        GATEWAY.after = breaks
        with pytest.raises(Broken):
            post("/pay/hold")
        IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=30))
        assert post("/pay/hold").status_code == 409
        IdempotencyStep.objects.update(finished_at=timezone.now(), result='{"value": {"charge": "x"}}')
        GATEWAY.after = lambda: None
        assert post("/pay/hold").json()["attempt"] == 2

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

    def test_none_runs_the_view_again(self, post: Post, in_doubt: None) -> None:
        """Then it rests on the gateway honouring the derived key."""
        HOOKS["reconcile"] = lambda operation: None
        assert post("/pay/reconcile").status_code == 201
        assert (GATEWAY.calls, len(GATEWAY.charges)) == (2, 1)

    def test_if_it_fails_the_doubt_remains(self, post: Post, in_doubt: None) -> None:
        """The next retry asks again."""
        HOOKS["reconcile"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        assert (row().status, GATEWAY.calls) == ("failed", 1)
        HOOKS["reconcile"] = lambda operation: HttpResponse("now we know")
        assert post("/pay/reconcile").content == b"now we know"

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_an_answer_that_is_not_final_is_an_error(self, post: Post, in_doubt: None, status: int) -> None:
        """The gateway cannot be asked now. Kept, the answer would be replayed for ever, and nobody would ask again."""
        HOOKS["reconcile"] = lambda operation: HttpResponse(status=status)
        with pytest.raises(IdempotencyConfigurationError, match=f"answered {status}, which is not final"):
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
    def test_an_atomic_view_goes_on_from_a_leased_failure(self, post: Post, client: Any) -> None:
        """The view's mode has changed in a release: the key is taken over, in one transaction."""
        HOOKS["view"] = breaks
        with pytest.raises(Broken):
            post("/changed")
        HOOKS["view"] = lambda request: Order.objects.create().pk
        assert post("/changed/atomic").status_code == 201
        assert (row().status, row().attempt, row().locked_until) == ("completed", 2, None)

    def test_an_atomic_view_holds_a_call_in_doubt(self, post: Post) -> None:
        """It has no derived keys to make the call safe."""
        HOOKS["view"] = lambda request: request.idempotency.call("charge", breaks)
        with pytest.raises(Broken):
            post("/changed")
        assert post("/changed/atomic").json()["title"] == "The outcome for this Idempotency-Key is unknown"

    def test_an_atomic_view_meets_a_live_lease_as_a_conflict(self, post: Post) -> None:
        """Whatever its own mode."""
        inner: list[Any] = []
        HOOKS["view"] = lambda request: inner.append(post("/changed/atomic").status_code)
        assert post("/changed").status_code == 201
        assert inner == [409]

    @pytest.mark.parametrize("verb", ["call", "write"])
    def test_an_atomic_view_holds_finished_steps(self, post: Post, verb: str) -> None:
        """It does not know them, and would do them again: charge twice, or write twice."""
        HOOKS["view"] = lambda request: (getattr(request.idempotency, verb)("a", lambda: 1), breaks())
        with pytest.raises(Broken):
            post("/changed")
        HOOKS["view"] = lambda request: Order.objects.create().pk
        assert post("/changed/atomic").json()["title"] == "The outcome for this Idempotency-Key is unknown"
        assert (row().status, IdempotencyStep.objects.count(), Order.objects.count()) == ("failed", 1, 0)

    def test_an_atomic_answer_that_is_not_final_frees_the_key(self, post: Post) -> None:
        """As if it had never been seen."""
        HOOKS["view"] = breaks
        with pytest.raises(Broken):
            post("/changed")
        HOOKS["view"] = lambda request: None
        assert post("/changed/atomic?status=429").status_code == 429
        assert IdempotencyKey.objects.count() == 0
