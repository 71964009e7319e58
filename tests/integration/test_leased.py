"""Leased mode on the database at hand: failure, takeover, doubt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.http import HttpResponse
from django.test import override_settings
from django.utils import timezone, translation

from django_idempotency import (
    IdempotencyConfigurationError,
    OutcomeUnknown,
    ResultLost,
    ResultNotStorable,
    get_operation,
    run_once,
)
from django_idempotency.maintenance import half_done, in_doubt, needs_attention, record_outcome
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, as_if_killed, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.leased_urls")]


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


def charging(name: str = "charge", *, keyed: bool) -> Callable[[Any], Any]:
    """A view that makes one call, and asks for its derived key or not."""

    def view(request: Any) -> Any:
        operation = request.idempotency
        return operation.call(name, GATEWAY.charge, operation.derive_key(name) if keyed else name)

    return view


def timed_out(post: Post, path: str = "/hooked", *, keyed: bool) -> None:
    """The gateway has charged, and its answer is lost."""
    HOOKS["view"], GATEWAY.after = charging(keyed=keyed), breaks
    with pytest.raises(Broken):
        post(path)
    GATEWAY.after = lambda: None


class TestRetryKeyed:
    """`on_abandoned="retry-keyed"`, the default. Each adapter: tests/contracts/test_adapters_leased.py."""

    @pytest.mark.parametrize("crash", [False, True])
    def test_one_start_without_a_key_forbids_every_other(self, post: Post, crash: bool) -> None:
        """Also if the first start and this attempt are keyed: whether the call raised or its worker died in it."""
        timed_out(post, "/both", keyed=True)
        timed_out(post, "/both/retry", keyed=False)
        HOOKS["view"] = charging(keyed=True)
        if crash:
            as_if_killed()
        assert (post("/both").status_code, GATEWAY.calls, row().attempt) == (409, 2, 2)

    @pytest.mark.parametrize(("path", "status"), [("/both", 409), ("/both/retry", 201), ("/both/hold", 409)])
    def test_the_option_of_the_retry_decides(self, post: Post, path: str, status: int) -> None:
        """Not the policy that the row has stored, in either direction."""
        timed_out(post, "/both/hold", keyed=False)
        assert (post(path).status_code, GATEWAY.calls) == (status, 1 + (status == 201))

    @pytest.mark.parametrize("stored", ["/both/hold", "/both/retry"])
    def test_a_keyed_call_is_repeated_whatever_the_row_has_stored(self, post: Post, stored: str) -> None:
        """An endpoint whose option was changed since."""
        timed_out(post, stored, keyed=True)
        assert (post("/both").status_code, GATEWAY.calls, len(GATEWAY.charges)) == (201, 2, 1)

    def test_one_doubt_holds_the_whole_key(self, post: Post) -> None:
        """The call beside it has a key, and is not repeated either."""

        def both(request: Any) -> None:
            for view in (charging(keyed=True), charging("mail", keyed=False)):
                with suppress(Broken):
                    view(request)

        HOOKS["view"], GATEWAY.after = both, breaks
        assert post("/hooked").status_code == 201
        GATEWAY.after = lambda: None
        assert (post("/hooked").status_code, GATEWAY.calls, row().attempt) == (409, 2, 1)

    @override_settings(IDEMPOTENCY={"DERIVED_KEYS_LAST": timedelta(minutes=10)})
    @pytest.mark.parametrize(("minutes", "status"), [(9, 201), (11, 409)])
    def test_the_setting_says_how_long_gateways_remember(self, post: Post, minutes: int, status: int) -> None:
        """By the database's clock, from the first start on."""
        timed_out(post, keyed=True)
        IdempotencyStep.objects.update(started_at=timezone.now() - timedelta(minutes=minutes))
        assert (post("/hooked").status_code, GATEWAY.calls) == (status, 1 + (status == 201))

    def test_a_repeat_keeps_the_time_of_the_first_start(self, post: Post) -> None:
        """The gateway has counted from there."""
        timed_out(post, keyed=True)
        IdempotencyStep.objects.update(started_at=timezone.now() - timedelta(hours=22))
        timed_out(post, keyed=True)
        IdempotencyStep.objects.update(started_at=F("started_at") - timedelta(hours=2))
        assert (post("/hooked").status_code, GATEWAY.calls) == (409, 2)

    @pytest.mark.parametrize("crash", [False, True])
    def test_a_view_that_catches_the_refusal_does_not_complete_the_key(self, post: Post, crash: bool) -> None:
        """Its answer is sent, the call stays in doubt, and a person sees it."""

        def catches(request: Any) -> str:
            with pytest.raises(OutcomeUnknown, match="The call 'charge' is not repeated, because one of"):
                charging(keyed=False)(request)
            return "sorry"

        timed_out(post, keyed=True)
        if crash:
            as_if_killed()
        HOOKS["view"] = catches
        assert (post("/hooked").json(), GATEWAY.calls) == ({"result": "sorry"}, 1)
        assert (row().status, in_doubt().count(), needs_attention().count()) == ("failed", 1, 1)


CHOICE = (
    "The call 'charge' is not repeated, because one of its starts carried no derived key, or the first is older than "
    "DERIVED_KEYS_LAST. Send operation.derive_key('charge') with it in each attempt, or pass on_abandoned=\"retry\" if "
    "making it twice is harmless."
)


class TestTheChoiceIsOfferedWhereItIsMet:
    """Held is a burden: a developer is told which step is held, and what to type."""

    @pytest.mark.parametrize("earlier", [False, True])
    def test_under_debug_the_409_says_it(self, post: Post, earlier: bool) -> None:
        """Whether the earlier start had no key, or this attempt asked for none. In production it says nothing of it."""
        timed_out(post, keyed=earlier)
        HOOKS["view"] = charging(keyed=not earlier)
        held = (
            "The first request with this key was interrupted. It is not known yet whether it took effect. Send the "
            "same request again later, with the same key."
        )
        assert post("/hooked").json()["detail"] == held
        with override_settings(DEBUG=True):
            assert post("/hooked").json()["detail"] == f"{held} {CHOICE}"
            with translation.override("de"):
                german = post("/hooked").json()["detail"]
        assert "Der Aufruf „charge“ wird nicht wiederholt" in german
        assert "operation.derive_key('charge')" in german

    @override_settings(DEBUG=True)
    def test_under_hold_there_is_nothing_to_offer(self, post: Post) -> None:
        """The project has chosen it."""
        timed_out(post, "/hooked/hold", keyed=False)
        assert post("/hooked/hold").json()["detail"].endswith("with the same key.")

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(("name", "shown"), [("charge", "charge"), ("mail:order", "mail;order")])
    def test_the_log_says_it(self, post: Post, caplog: pytest.LogCaptureFixture, name: str, shown: str) -> None:
        """At the level ERROR. A colon would end the reason."""
        HOOKS["view"], GATEWAY.after = charging(name, keyed=False), breaks
        with pytest.raises(Broken):
            post("/hooked")
        post("/hooked")
        (said,) = [record for record in caplog.records if getattr(record, "event", "") == "held"]
        assert (said.levelname, said.reason) == ("ERROR", CHOICE.replace("charge", shown))  # type: ignore[attr-defined]
        assert said.getMessage().endswith(f"held, {CHOICE.replace('charge', shown)}.")

    def test_run_once_says_it(self) -> None:
        """At the claim, and at a call that this attempt has asked no key for."""

        def pay(operation: Any, *, keyed: bool, fails: bool = False) -> None:
            if keyed:
                operation.derive_key("charge")
            operation.call("charge", breaks if fails else int)

        for earlier in (False, True):
            options: dict[str, Any] = {"scope": "s", "key": f"k{earlier}", "operation": "pay", "lease": 60}
            with pytest.raises(Broken):
                run_once(partial(pay, keyed=earlier, fails=True), **options)
            with pytest.raises(OutcomeUnknown) as raised:
                run_once(partial(pay, keyed=not earlier), **options)
            assert str(raised.value) == (
                f"pay with key 'k{earlier}' was interrupted, and its outcome is unknown. A person has to look. {CHOICE}"
            )


class TestReconcileBeforeAKeyedRepeat:
    """What `reconcile` looks up under a step's name is no start of the call."""

    def test_it_returns_none_and_an_unkeyed_call_is_not_repeated(self, post: Post) -> None:
        """ "Not found" is no permission: the books may be late."""
        timed_out(post, "/both/reconcile", keyed=False)
        HOOKS["reconcile"] = lambda operation: None
        HOOKS["view"] = charging(keyed=True)
        assert (post("/both/reconcile").status_code, GATEWAY.calls) == (409, 1)
        assert (row().status, in_doubt().count(), needs_attention().count()) == ("failed", 1, 1)

    def test_it_returns_none_and_a_keyed_call_is_repeated(self, post: Post) -> None:
        timed_out(post, "/both/reconcile", keyed=True)
        HOOKS["reconcile"] = lambda operation: None
        assert (post("/both/reconcile").status_code, GATEWAY.calls, len(GATEWAY.charges)) == (201, 2, 1)

    def test_the_key_that_it_asks_for_is_not_the_views(self, post: Post) -> None:
        """It asks the gateway by the derived key; the view, which has forgotten it, is refused."""
        timed_out(post, "/both/reconcile", keyed=True)
        HOOKS["reconcile"] = lambda operation: operation.derive_key("charge") and None
        HOOKS["view"] = charging(keyed=False)
        assert (post("/both/reconcile").status_code, GATEWAY.calls) == (409, 1)

    @pytest.mark.parametrize(("keyed", "status"), [(True, 201), (False, 409)])
    def test_a_look_up_that_fails_leaves_the_call_as_it_was(self, post: Post, keyed: bool, status: int) -> None:
        """It asks for a key or not; only the starts of the view count."""

        def fails(operation: Any) -> None:
            if not keyed:
                operation.derive_key("charge")
            operation.call("charge", breaks)

        timed_out(post, "/both/reconcile", keyed=keyed)
        HOOKS["reconcile"] = fails
        with pytest.raises(Broken):
            post("/both/reconcile")
        HOOKS["reconcile"] = lambda operation: None
        HOOKS["view"] = charging(keyed=True)
        assert (post("/both/reconcile").status_code, GATEWAY.calls) == (status, 1 + keyed)


class TestALostValue:
    """A call has taken effect, and its value could not be stored."""

    @pytest.fixture(params=["/both", "/both/hold", "/both/retry", "/both/reconcile"])
    def path(self, request: pytest.FixtureRequest, post: Post) -> str:
        path = str(request.param)
        GATEWAY.result = lambda key: object()
        HOOKS["view"] = self.pay
        HOOKS["reconcile"] = lambda operation: None
        with pytest.raises(ResultNotStorable):
            post(path)
        GATEWAY.result = lambda key: {"charge": key}
        return path

    @staticmethod
    def pay(request: Any) -> Any:
        operation = request.idempotency
        charge = operation.call("charge", GATEWAY.charge, operation.derive_key("charge"))
        return operation.write("order", Order.objects.create, reference=charge["charge"]).reference

    def test_no_retry_replaces_it_and_a_person_sees_it(self, post: Post, path: str) -> None:
        """The call is not repeated, and its value is not None: nothing but an error can follow."""
        for _ in range(2):
            with pytest.raises(ResultLost, match="'charge' took effect, and its value was lost"):
                post(path)
        assert (GATEWAY.calls, row().status, half_done().count(), needs_attention().count()) == (1, "failed", 1, 1)

    def test_a_view_that_answers_all_the_same_does_not_complete_the_key(self, post: Post, path: str) -> None:
        """It catches the error, as it would that of a declined card."""

        def declines(request: Any) -> str:
            with suppress(ResultLost):
                self.pay(request)
            return "declined"

        HOOKS["view"] = declines
        assert post(path).json() == {"result": "declined"}
        assert (row().status, half_done().count(), Order.objects.count()) == ("failed", 1, 0)

    def test_a_recorded_value_lets_the_retry_go_on_and_complete(self, post: Post, path: str) -> None:
        """`record_outcome`: one charge, its order, and nothing to do any more."""
        record_outcome(row(), "charge", {"charge": "found"})
        sent = post(path)
        assert (sent.status_code, sent.json(), GATEWAY.calls) == (201, {"result": "found"}, 1)
        assert (row().status, needs_attention().count(), Order.objects.get().reference) == ("completed", 0, "found")


def test_reconcile_sees_a_lost_value_and_enters_it(post: Post) -> None:
    """By `operation.call`; the view goes on, and the key completes."""
    GATEWAY.result = lambda key: object()
    HOOKS["view"] = TestALostValue.pay
    with pytest.raises(ResultNotStorable):
        post("/both/reconcile")
    seen: list[Any] = []

    def enter(operation: Any) -> None:
        seen.append((operation.lost, operation.in_doubt, operation.results))
        operation.call("charge", lambda: {"charge": "found"})

    HOOKS["reconcile"] = enter
    assert post("/both/reconcile").json() == {"result": "found"}
    assert (seen, GATEWAY.calls) == ([(("charge",), (), {})], 1)
    assert (row().status, needs_attention().count(), Order.objects.get().reference) == ("completed", 0, "found")


class TestOtherModes:
    def test_an_atomic_view_holds_a_call_in_doubt(self, post: Post) -> None:
        """It has no derived keys to make the call safe."""
        HOOKS["view"] = lambda request: request.idempotency.call("charge", breaks)
        with pytest.raises(Broken):
            post("/changed")
        assert post("/changed/atomic").json()["title"] == "The outcome for this Idempotency-Key is unknown"

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

        HOOKS["between"] = stray
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
