"""What "retry-keyed" repeats, what it holds and says, and how a lost value comes back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db.models import F
from django.test import override_settings
from django.utils import timezone, translation

from django_idempotency import (
    OutcomeUnknown,
    ResultLost,
    ResultNotStorable,
    run_once,
)
from django_idempotency.maintenance import half_done, in_doubt, needs_attention, record_outcome, remember_calls
from django_idempotency.models import IdempotencyStep
from tests.at_rest import OLD
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, as_if_killed, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


def charging(name: str = "charge", *, keyed: bool) -> Callable[[Any], Any]:
    """A view that makes one call, and asks for its derived key or not."""

    def charges(request: Any) -> Any:
        operation = request.idempotency
        return operation.call(name, GATEWAY.charge, operation.derive_key(name) if keyed else name)

    return charges


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
        held = post("/hooked").json()["detail"]
        assert "on_abandoned" not in held
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

        def calls(operation: Any, *, keyed: bool, fails: bool = False) -> None:
            if keyed:
                operation.derive_key("charge")
            operation.call("charge", breaks if fails else int)

        for earlier in (False, True):
            options: dict[str, Any] = {"scope": "s", "key": f"k{earlier}", "operation": "pay", "lease": 60}
            with pytest.raises(Broken):
                run_once(partial(calls, keyed=earlier, fails=True), **options)
            with pytest.raises(OutcomeUnknown) as raised:
                run_once(partial(calls, keyed=not earlier), **options)
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
        HOOKS["view"] = self.charges_and_orders
        HOOKS["reconcile"] = lambda operation: None
        with pytest.raises(ResultNotStorable):
            post(path)
        GATEWAY.result = lambda key: {"charge": key}
        return path

    @staticmethod
    def charges_and_orders(request: Any) -> Any:
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
                self.charges_and_orders(request)
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


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def _at_rest(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]} if request.param else {}


@pytest.mark.usefixtures("_at_rest")
def test_reconcile_sees_a_lost_value_and_enters_it(post: Post) -> None:
    """By `operation.call`; the view goes on, and the key completes."""
    GATEWAY.result = lambda key: object()
    HOOKS["view"] = TestALostValue.charges_and_orders
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


def test_a_value_that_reconcile_cannot_store_either_stays_lost(post: Post) -> None:
    """The error says so, and the key is still seen."""
    GATEWAY.result = lambda key: object()
    HOOKS["view"] = TestALostValue.charges_and_orders
    HOOKS["reconcile"] = lambda operation: operation.call("charge", object)
    for _ in range(2):
        with pytest.raises(ResultNotStorable):
            post("/both/reconcile")
    assert (GATEWAY.calls, half_done().count(), IdempotencyStep.objects.get().result) == (1, 1, None)


@pytest.mark.usefixtures("_at_rest")
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
@pytest.mark.parametrize("using", ["default", "other"])
def test_a_lost_value_is_remembered_like_the_result_of_a_call(using: str) -> None:
    """`remember_calls` enters it; one that is known stays as it is."""
    about = {"scope": "s", "operation": "pay", "key": "k", "using": using}
    with pytest.raises(ResultNotStorable):
        run_once(lambda operation: operation.call("charge", object), lease=60, **about)
    for value in ("found", "another"):
        assert remember_calls(**about, results={"charge": value}) == {"charge": "found"}
    assert half_done(using=using).count() == 1
