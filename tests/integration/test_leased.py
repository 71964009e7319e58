"""Leased mode on the database at hand: steps, failure, takeover, doubt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F
from django.http import HttpResponse
from django.test import override_settings
from django.utils import timezone

from django_idempotency import IdempotencyConfigurationError, LeaseLost, ResultNotStorable, get_operation
from django_idempotency.engine.execution.unkeyed import UnkeyedOperation
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.integration.leased_urls import GATEWAY, HOOKS, LEASE
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


class Broken(Exception):
    """What breaks in these tests."""


def breaks(*args: Any) -> Any:
    raise Broken("it broke, token=tok_123")


def lapse(by: timedelta = LEASE) -> None:
    """The lease runs out."""
    IdempotencyKey.objects.update(locked_until=F("locked_until") - by - timedelta(seconds=1))


def as_if_killed() -> None:
    """What an exception has released looks as if its worker had died on the spot, and its lease had run out."""
    past = timezone.now() - timedelta(days=1)
    changed = IdempotencyKey.objects.filter(status="failed").update(
        status="in_progress", locked_until=past, last_error=None
    )
    assert changed == 1


def row() -> IdempotencyKey:
    return IdempotencyKey.objects.get()


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
        assert row().last_error == f"{__name__}.Broken: it broke, token=****"
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
        assert (step.name, step.finished_at, step.error) == ("charge", None, f"{__name__}.Broken: it broke, token=****")
        GATEWAY.after = lambda: None
        assert post("/pay").status_code == 201
        assert (GATEWAY.calls, len(GATEWAY.charges)) == (2, 1)
        step.refresh_from_db()
        assert (step.attempt, step.error, step.finished_at is None) == (2, None, False)

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

        def look_up(request: Any, operation: Any) -> HttpResponse:
            seen.append((operation.in_doubt, operation.derive_key("charge") in GATEWAY.charges, operation.attempt))
            assert get_operation(request) is operation
            return HttpResponse("charged", status=201)

        HOOKS["reconcile"] = look_up
        first, second = post("/pay/reconcile"), post("/pay/reconcile")
        assert (first.status_code, first.content, second.content) == (201, b"charged", b"charged")
        assert second.headers["Idempotency-Replayed"] == "true"
        assert seen == [(("charge",), True, 2)]
        assert (GATEWAY.calls, Order.objects.count()) == (1, 0)

    def test_it_may_record_what_it_found_and_let_the_view_go_on(self, post: Post, in_doubt: None) -> None:
        """The call is answered from its record."""

        def record(request: Any, operation: Any) -> None:
            operation.call("charge", lambda: {"charge": "found"})

        HOOKS["reconcile"] = record
        assert post("/pay/reconcile").json()["charge"] == "found"
        assert (GATEWAY.calls, Order.objects.get().reference) == (1, "found")

    def test_none_runs_the_view_again(self, post: Post, in_doubt: None) -> None:
        """Then it rests on the gateway honouring the derived key."""
        HOOKS["reconcile"] = lambda request, operation: None
        assert post("/pay/reconcile").status_code == 201
        assert (GATEWAY.calls, len(GATEWAY.charges)) == (2, 1)

    def test_if_it_fails_the_doubt_remains(self, post: Post, in_doubt: None) -> None:
        """The next retry asks again."""
        HOOKS["reconcile"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        assert (row().status, GATEWAY.calls) == ("failed", 1)
        HOOKS["reconcile"] = lambda request, operation: HttpResponse("now we know")
        assert post("/pay/reconcile").content == b"now we know"

    def test_it_is_asked_about_a_dead_worker_without_doubts(self, post: Post) -> None:
        """Only the project knows what else the view has done."""
        HOOKS["between"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        as_if_killed()
        HOOKS["reconcile"] = lambda request, operation: HttpResponse(f"doubts: {operation.in_doubt}")
        assert post("/pay/reconcile").content == b"doubts: ()"

    def test_a_clean_failure_is_not_its_business(self, post: Post) -> None:
        """Nothing was abandoned and nothing is in doubt."""
        HOOKS["between"] = breaks
        HOOKS["reconcile"] = breaks
        with pytest.raises(Broken):
            post("/pay/reconcile")
        HOOKS.pop("between")
        assert post("/pay/reconcile").json()["attempt"] == 2


class TestSteps:
    def run(self, post: Post, view: Callable[[Any], Any]) -> Any:
        HOOKS["view"] = lambda request: view(request.idempotency)
        return post("/hooked").json()["result"]

    def test_a_name_may_be_used_once_in_an_attempt(self, post: Post) -> None:
        """Else the second would get the first one's result."""
        calls: list[int] = []

        def twice(operation: Any) -> None:
            operation.call("mail", lambda: calls.append(1))
            operation.call("mail", lambda: calls.append(2))

        with pytest.raises(IdempotencyConfigurationError, match="'mail' was used twice in one attempt"):
            self.run(post, twice)
        assert calls == [1]

    @pytest.mark.parametrize("name", ["", "x" * 101, 5])
    def test_names_are_short_strings(self, post: Post, name: Any) -> None:
        """Said before anything is called."""
        with pytest.raises(IdempotencyConfigurationError, match="is no name for a step"):
            self.run(post, lambda operation: operation.call(name, breaks))

    def test_the_longest_name_and_arguments_by_name(self, post: Post) -> None:
        assert self.run(post, lambda operation: operation.call("x" * 100, dict, amount=5)) == {"amount": 5}

    def test_a_step_returns_what_a_retry_would_get(self, post: Post) -> None:
        """JSON: a tuple is a list and a Decimal a string at once, not only after a crash."""
        value = (1, Decimal("1.10"), UUID(int=1))
        assert self.run(post, lambda operation: operation.call("a", lambda: value)) == [1, "1.10", str(UUID(int=1))]

    def test_a_result_that_cannot_be_kept_leaves_the_call_done(self, post: Post) -> None:
        """The money has moved: it is not called again, and the next attempt gets None."""
        with pytest.raises(ResultNotStorable, match="object cannot be kept as JSON"):
            self.run(post, lambda operation: operation.call("charge", object))
        assert IdempotencyStep.objects.get().finished_at is not None
        assert self.run(post, lambda operation: operation.call("charge", breaks)) is None

    @pytest.mark.parametrize("value", [float("nan"), {1: object()}, Order(reference="unsaved")])
    def test_a_write_that_cannot_be_kept_is_rolled_back(self, post: Post, value: Any) -> None:
        """Nothing was committed, so the retry starts clean."""

        def write() -> Any:
            Order.objects.create()
            return value

        with pytest.raises(ResultNotStorable):
            self.run(post, lambda operation: operation.write("order", write))
        assert (Order.objects.count(), IdempotencyStep.objects.count()) == (0, 0)

    def test_an_instance_that_is_gone_is_an_error(self, post: Post) -> None:
        """It cannot be fetched again."""

        def order(operation: Any) -> Any:
            return operation.write("order", Order.objects.create).pk

        HOOKS["view"] = lambda request: (order(request.idempotency), breaks())
        with pytest.raises(Broken):
            post("/hooked")
        Order.objects.all().delete()
        with pytest.raises(Order.DoesNotExist):
            self.run(post, order)

    def test_a_call_cannot_become_a_write(self, post: Post) -> None:
        """Another release has renamed things: the doubt is not forgotten."""
        with pytest.raises(Broken):
            self.run(post, lambda operation: operation.call("x", breaks))
        with pytest.raises(IdempotencyConfigurationError, match="started as an external call"):
            self.run(post, lambda operation: operation.write("x", breaks))

    @pytest.mark.parametrize("step", ["call", "write"])
    def test_steps_are_refused_inside_a_transaction(self, post: Post, step: str) -> None:
        """They could not commit."""

        def inside(operation: Any) -> None:
            with transaction.atomic():
                getattr(operation, step)("x", breaks)

        with pytest.raises(IdempotencyConfigurationError, match=f"operation.{step}\\('x'\\) was reached inside"):
            self.run(post, inside)

    def test_a_coroutine_function_needs_the_asynchronous_twin(self, post: Post) -> None:
        """Named in the error."""

        async def charge() -> None:
            """Never runs."""

        for step in ("call", "write"):
            with pytest.raises(IdempotencyConfigurationError, match=rf"await operation\.a{step}\('{step}'"):
                self.run(post, lambda operation, step=step: getattr(operation, step)(step, charge))

    def test_derived_keys(self, post: Post) -> None:
        """UUIDs, one for each name, the same in every attempt."""
        seen: list[list[str]] = []

        def derive(operation: Any) -> None:
            seen.append([operation.derive_key("charge"), operation.derive_key("refund")])
            raise Broken

        for _ in range(2):
            with pytest.raises(Broken):
                self.run(post, derive)
        assert seen[0] == seen[1]
        assert len({UUID(key) for key in seen[0]}) == 2

    def test_the_client_can_see_its_key(self, post: Post, key: str) -> None:
        """And which attempt it is."""
        assert self.run(post, lambda operation: [operation.key, operation.attempt]) == [key, 1]


class TestFence:
    """A worker whose key was taken over, here by itself, cannot commit anything any more."""

    def taken_over(self, operation: Any = None) -> None:
        IdempotencyKey.objects.update(attempt=F("attempt") + 1)

    def test_it_cannot_write(self, post: Post) -> None:
        """Its client gets the conflict: somebody else is at work."""
        HOOKS["between"] = self.taken_over
        answer = post("/pay")
        assert (answer.status_code, answer.json()["title"]) == (
            409,
            "A request is outstanding for this Idempotency-Key",
        )
        assert Order.objects.count() == 0
        assert row().status == "in_progress"

    def test_it_cannot_call(self, post: Post) -> None:
        """Nor start to."""

        def late(request: Any) -> None:
            self.taken_over()
            request.idempotency.call("charge", GATEWAY.charge, "k")

        HOOKS["view"] = late
        assert post("/hooked").status_code == 409
        assert GATEWAY.calls == 0

    def test_it_cannot_record_a_result_complete_or_fail(self, post: Post) -> None:
        """Not after a call, at the end, or by an exception, even if the view swallows the error."""
        GATEWAY.after = self.taken_over
        assert post("/pay").status_code == 409
        assert IdempotencyStep.objects.get().finished_at is None

    @pytest.mark.parametrize("end", [lambda: None, breaks])
    def test_it_cannot_end_the_operation(self, post: Post, end: Any) -> None:
        """Neither well nor badly; a winner's answer is its own client's answer, too."""

        def late(request: Any) -> Any:
            with pytest.raises(LeaseLost):
                request.idempotency.renew() if self.taken_over() is None else None
            IdempotencyKey.objects.update(
                status="completed", status_code=201, headers="[]", body=b"winner", locked_until=None
            )
            return end()

        HOOKS["view"] = late
        answer = post("/hooked")
        assert (answer.status_code, answer.content) == (201, b"winner")
        assert answer.headers["Idempotency-Replayed"] == "true"

    def test_a_lapsed_lease_alone_loses_nothing(self, post: Post) -> None:
        """Until somebody takes it over, its worker may finish, or take it anew."""

        def slow(operation: Any) -> None:
            lapse()
            operation.renew()
            assert row().locked_until > timezone.now() + timedelta(seconds=90)
            lapse()

        HOOKS["between"] = slow
        assert post("/pay").status_code == 201
        assert Order.objects.count() == 1

    def test_a_row_that_is_gone_is_a_lost_lease(self, post: Post) -> None:
        """Somebody deleted it by hand."""
        HOOKS["between"] = lambda operation: IdempotencyKey.objects.all().delete()
        assert post("/pay").status_code == 409
        assert Order.objects.count() == 0


class TestTransactions:
    @pytest.mark.django_db(transaction=True)
    def test_it_is_refused_inside_a_transaction(self, post: Post) -> None:
        """Its claim could not commit first."""
        with transaction.atomic(), pytest.raises(IdempotencyConfigurationError, match="reached inside a transaction"):
            post("/pay")
        assert not IdempotencyKey.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_it_is_refused_without_autocommit(self, post: Post) -> None:
        """The same."""
        transaction.set_autocommit(False)
        try:
            with pytest.raises(IdempotencyConfigurationError, match="reached inside a transaction"):
                post("/pay")
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert not IdempotencyKey.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_under_atomic_requests_we_take_the_alias_over(self, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
        """A function view needs nothing."""
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        depths: list[bool] = []
        HOOKS["between"] = lambda operation: depths.append(connection.in_atomic_block)
        assert post("/pay").status_code == 201
        assert depths == [False]

    @pytest.mark.django_db(transaction=True)
    def test_it_commits_outside_of_test_cases_too(self, post: Post) -> None:
        """The whole of it, without a transaction around."""
        assert post("/pay").status_code == 201
        assert (row().status, Order.objects.count()) == ("completed", 1)


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

    def test_an_atomic_answer_that_is_not_final_frees_the_key_with_its_steps(self, post: Post) -> None:
        """As if it had never been seen."""
        HOOKS["view"] = lambda request: (request.idempotency.write("a", lambda: 1), breaks())
        with pytest.raises(Broken):
            post("/changed")
        HOOKS["view"] = breaks
        with pytest.raises(Broken):
            post("/changed/atomic")
        assert (row().status, IdempotencyStep.objects.count()) == ("failed", 1)
        HOOKS["view"] = lambda request: None
        assert post("/changed/atomic?status=429").status_code == 429
        assert (IdempotencyKey.objects.count(), IdempotencyStep.objects.count()) == (0, 0)

    def test_without_a_key_the_steps_just_run(self, client: Any) -> None:
        """required=False: each request charges, with a derived key of its own."""
        answers = [client.post("/pay/optional", {}, content_type="application/json") for _ in range(2)]
        assert [a.status_code for a in answers] == [201, 201]
        assert "Idempotency-Replayed" not in answers[0].headers
        assert (len(set(GATEWAY.charges)), Order.objects.count(), IdempotencyKey.objects.count()) == (2, 2, 0)

    def test_without_a_key_coroutine_functions_need_the_twin_as_well(self) -> None:
        """The same view must work with a key."""

        async def charge(*, amount: int = 0) -> int:
            return amount

        operation = UnkeyedOperation("default")
        with pytest.raises(IdempotencyConfigurationError, match=r"'one'.*charge.*operation\.acall\('one'"):
            operation.call("one", charge)
        with pytest.raises(IdempotencyConfigurationError, match=r"'two'.*charge.*operation\.awrite\('two'"):
            operation.write("two", charge)
        assert async_to_sync(operation.acall)("three", charge, amount=5) == 5

    def test_switched_off_they_just_run_too(self, post: Post) -> None:
        """ENABLED is False in some tests."""
        with override_settings(IDEMPOTENCY={"ENABLED": False}):
            assert post("/pay").status_code == 201
        assert (GATEWAY.calls, IdempotencyKey.objects.count()) == (1, 0)

    def test_outside_of_a_leased_view_there_is_no_operation(self, rf: Any) -> None:
        """And the error says how to get one."""
        with pytest.raises(IdempotencyConfigurationError, match="Protect the view with"):
            get_operation(rf.post("/"))


class TestStatusPage:
    def test_a_duplicate_is_told_where_to_look(self, post: Post, client: Any) -> None:
        """202, Location, Retry-After; the page follows the operation to its end and never shows the response."""
        inner: list[Any] = []

        def look(operation: Any) -> None:
            accepted = post("/pay/poll")
            inner.extend([accepted, client.get(accepted.headers["Location"])])

        HOOKS["between"] = look
        final = post("/pay/poll")
        accepted, page = inner
        assert (accepted.status_code, accepted.headers["Retry-After"]) == (202, "1")
        assert accepted.headers["Idempotency-Replayed"] == "false"
        for answer in (accepted, page):
            assert {k: answer.json()[k] for k in ("status", "attempt", "steps", "completed_at")} == {
                "status": "in_progress",
                "attempt": 1,
                "steps": ["charge"],
                "completed_at": None,
            }
        assert (page.status_code, page.headers["Retry-After"]) == (200, "1")
        assert "no-store" in page.headers["Cache-Control"]
        done = client.get(accepted.headers["Location"])
        assert (done.json()["status"], done.json()["steps"]) == ("completed", ["charge", "order"])
        assert set(done.json()) == {"status", "attempt", "steps", "created_at", "completed_at", "expires_at"}
        assert "Retry-After" not in done.headers
        assert final.json()["charge"].encode() not in done.content

    def test_an_abandoned_operation_is_not_polled_for_ever(self, post: Post, client: Any) -> None:
        """Nobody works on it until the client sends its request again."""
        inner: list[Any] = []
        HOOKS["between"] = lambda operation: inner.append(post("/pay/poll")) or breaks()
        with pytest.raises(Broken):
            post("/pay/poll")
        location = inner[0].headers["Location"]
        assert client.get(location).json()["status"] == "failed"
        as_if_killed()
        page = client.get(location)
        assert (page.json()["status"], "Retry-After" in page.headers) == ("abandoned", False)

    def test_its_address_cannot_be_made_up(self, post: Post, client: Any) -> None:
        """A changed letter, another key's numbers, an expired or deleted key: 404."""
        inner: list[Any] = []
        HOOKS["between"] = lambda operation: inner.append(post("/pay/poll").headers["Location"])
        post("/pay/poll")
        location = inner[0]
        assert client.get(location[:-1] + ("A" if location[-1] != "A" else "B")).status_code == 404
        assert client.get("/status/status/x").status_code == 404
        assert client.post(location).status_code == 405
        IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
        assert client.get(location).status_code == 404
        IdempotencyKey.objects.all().delete()
        assert client.get(location).status_code == 404

    @pytest.mark.urls("tests.integration.leased_urls_without_status")
    def test_a_project_without_it_is_told(self, post: Post) -> None:
        """With the line to add."""
        HOOKS["view"] = lambda request: post("/poll")
        with pytest.raises(IdempotencyConfigurationError, match=r'include\("django_idempotency.urls"\)'):
            post("/poll")


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

        HOOKS["between"] = stray
        assert post("/pay").status_code == 201

    @override_settings(DEBUG=True)
    def test_a_wrapper_of_the_views_own_sees_what_django_says(self, post: Post) -> None:
        """Ours hands on all of it."""
        seen: list[Any] = []

        def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            seen.append((many, context["connection"].alias))
            return execute(sql, params, many, context)

        def read(operation: Any) -> None:
            with connection.execute_wrapper(watch):
                Order.objects.count()

        HOOKS["between"] = read
        post("/pay")
        assert seen == [(False, "default")]

    def test_without_debug_nobody_looks(self, post: Post) -> None:
        """Warnings are errors in these tests."""
        HOOKS["between"] = lambda operation: Order.objects.create() and None
        assert post("/pay").status_code == 201
