"""`run_once`, `arun_once` and `once`: the same promises without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import override_settings
from django.urls import path
from django.utils import timezone

from django_idempotency import (
    IdempotencyConfigurationError,
    NotRun,
    Operation,
    OperationInProgress,
    OutcomeUnknown,
    PayloadMismatch,
    Result,
    ResultNotStorable,
    StoreBusy,
    TransactionBroken,
    arun_once,
    idempotent,
    once,
    run_once,
)
from django_idempotency.engine.protocol.key_syntax import InvalidKey
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.shopapp.models import Ledger, Order

pytestmark = pytest.mark.django_db
RUNS: list[Any] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    RUNS.clear()


def place(*args: Any) -> Order:
    RUNS.append(args)
    return Order.objects.create(reference="placed")


def breaks(*args: Any) -> None:
    RUNS.append(args)
    Order.objects.create(reference="broken")
    raise ValueError("it broke")


def nested() -> Any:
    return run_once(place, scope="inner", key="1").replayed


class TestAtomic:
    def test_the_work_runs_once(self) -> None:
        """Later calls get the result: here a model instance, fetched again."""
        first = run_once(place, scope="s", key="k")
        second = run_once(place, scope="s", key="k")
        assert (first, second) == (Result(first.value, replayed=False), Result(first.value, replayed=True))
        assert isinstance(second.value, Order)
        assert (len(RUNS), Order.objects.count()) == (1, 1)
        row = IdempotencyKey.objects.get()
        assert (row.scope, row.operation, row.key, row.status) == ("s", f"{__name__}.place", "k", "completed")

    @pytest.mark.parametrize(
        ("value", "kept"), [(None, None), ([1, "a"], [1, "a"]), ({"a": (Decimal("1.10"),)}, {"a": ["1.10"]})]
    )
    def test_values_are_json(self, value: Any, kept: Any) -> None:
        """The first caller sees what the later ones will."""
        answers = [run_once(lambda: value, scope="s", key="k", operation="o") for _ in range(2)]
        assert [answer.value for answer in answers] == [kept, kept]

    def test_an_instance_is_handed_on_as_it_is(self) -> None:
        """The first caller gets the work's own, with whatever it has been given besides its fields."""
        order = Order.objects.create()
        assert run_once(lambda: order, scope="s", key="k", operation="o").value is order

    def test_scope_operation_and_key_tell_works_apart(self) -> None:
        """Each pair of scope and key, and each function, is its own."""
        run_once(place, scope="s", key="k")
        assert run_once(place, scope="t", key="k").replayed is False
        assert run_once(place, scope="s", key="l").replayed is False
        assert run_once(place, scope="s", key="k", operation="other").replayed is False
        assert Order.objects.count() == 4

    def test_an_exception_rolls_back_and_frees_the_key(self) -> None:
        """It propagates, and the next delivery runs."""
        with pytest.raises(ValueError, match="it broke"):
            run_once(breaks, scope="s", key="k")
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
        assert run_once(place, scope="s", key="k", operation=f"{__name__}.breaks").replayed is False

    def test_a_result_that_cannot_be_kept_rolls_back(self) -> None:
        """Else a redelivery would have nothing to return."""

        def work() -> object:
            Order.objects.create()
            return object()

        with pytest.raises(ResultNotStorable):
            run_once(work, scope="s", key="k", operation="o")
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)

    @pytest.mark.parametrize("payloads", [({"a": 1}, {"a": 2}), (b"1", b"2"), ([1], ["1"]), ("1", b"1")])
    def test_another_payload_is_a_named_exception(self, payloads: tuple[Any, Any]) -> None:
        """The key was mixed up; nothing runs."""
        run_once(place, scope="s", key="k", payload=payloads[0])
        with pytest.raises(PayloadMismatch, match=r"test_once\.place with key 'k' was used before"):
            run_once(place, scope="s", key="k", payload=payloads[1])
        assert run_once(place, scope="s", key="k", payload=payloads[0]).replayed is True
        assert len(RUNS) == 1

    @pytest.mark.parametrize(
        ("payload", "fingerprint"),
        [
            ({"b": [1, "ä"], "a": Decimal("1.10")}, "4e684364fad3ff23bfa66980aa869dd36cac95dcca7e966828e7c22fe60a752b"),
            (b"bytes", "4fe7aa7b3446d27644ddcb6096ef24efc8b9f19431a9f53b73ad265b5fb59cf4"),
        ],
    )
    def test_the_fingerprint_stays_the_same_from_release_to_release(self, payload: Any, fingerprint: str) -> None:
        """A retry across an upgrade must not be refused."""
        run_once(place, scope="s", key="k", payload=payload)
        assert bytes(IdempotencyKey.objects.get().fingerprint).hex() == fingerprint

    def test_payloads_are_compared_by_value(self) -> None:
        """The order of names does not matter, and no payload is compared with none."""
        run_once(place, scope="s", key="k", payload={"a": 1, "b": 2})
        assert run_once(place, scope="s", key="k", payload={"b": 2, "a": 1}).replayed is True
        assert run_once(place, scope="s", key="k").replayed is True

    def test_the_same_key_inside_itself_is_in_progress(self) -> None:
        """It would never end."""

        def work() -> Any:
            return run_once(work, scope="s", key="k", operation="o").value

        with pytest.raises(OperationInProgress, match="o with key 'k' is being run right now"):
            run_once(work, scope="s", key="k", operation="o")

    def test_nested_work_is_its_own(self) -> None:
        """Another key inside the work."""
        assert run_once(nested, scope="outer", key="1").value is False
        assert run_once(place, scope="inner", key="1").replayed is True

    def test_it_joins_the_callers_transaction(self) -> None:
        """Rolled back with it, the key is free again."""

        def outer() -> None:
            with transaction.atomic():
                run_once(place, scope="s", key="k")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            outer()
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)

    def test_a_failure_inside_the_callers_transaction_spares_it(self) -> None:
        """A savepoint: what the caller wrote stays."""
        with transaction.atomic():
            Order.objects.create(reference="the caller's")
            with pytest.raises(ValueError, match="it broke"):
                run_once(breaks, scope="s", key="k")
        assert Order.objects.get().reference == "the caller's"

    @pytest.mark.only_on("postgresql")
    def test_a_hidden_database_error_is_told(self) -> None:
        """Its writes are lost, so there is no success to report."""
        Ledger.objects.create(entry="x")

        def work() -> str:
            try:
                Ledger.objects.create(entry="x")
            except IntegrityError:
                return "fine"
            raise AssertionError

        with pytest.raises(TransactionBroken):
            run_once(work, scope="s", key="k", operation="o")

    def test_what_a_person_closed_it_with_is_its_value(self) -> None:
        """Any text that is not a result of ours."""
        run_once(place, scope="s", key="k")
        for body, value in ((b"refunded by hand", "refunded by hand"), (b"\xff", "\ufffd"), (None, "")):
            IdempotencyKey.objects.update(body=body)
            assert run_once(place, scope="s", key="k") == Result(value, replayed=True)


class TestLeased:
    def pay(self, operation: Operation) -> Any:
        RUNS.append(operation.attempt)
        charge = operation.call("charge", lambda: {"id": operation.derive_key("charge")})
        return {"order": operation.write("order", place).pk, **charge}

    def test_the_work_gets_an_operation(self) -> None:
        """Its steps are kept."""
        answers = [run_once(self.pay, scope="s", key="k", lease=60, operation="pay") for _ in range(2)]
        assert [answer.replayed for answer in answers] == [False, True]
        assert answers[0].value == answers[1].value
        assert (RUNS, Order.objects.count()) == ([1, ()], 1)

    def test_its_claim_has_a_lease(self) -> None:
        """Or a crash would leave it stuck for ever."""

        def look(operation: Operation) -> Any:
            row = IdempotencyKey.objects.get()
            return (row.locked_until - row.created_at).total_seconds()

        assert run_once(look, scope="s", key="k", lease=60, operation="look").value == pytest.approx(60, abs=5)

    def test_abandoned_it_runs_again(self) -> None:
        """Without `reconcile` nobody is asked."""
        with pytest.raises(ValueError, match="it broke"):
            run_once(breaks, scope="s", key="k", lease=60, operation="pay")
        past = timezone.now() - timedelta(hours=1)
        IdempotencyKey.objects.update(status="in_progress", locked_until=past)
        assert run_once(self.pay, scope="s", key="k", lease=60, operation="pay").replayed is False
        assert RUNS[1:] == [2, ()]

    def test_waiting_it_looks_again_and_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With pauses that grow, while somebody else holds the lease."""
        store = store_for("default")
        looks: list[float] = []
        claim = store.claim

        def counted(wanted: Any) -> Any:
            looks.append(wanted.wait)
            return claim(wanted)

        def meet(operation: Operation) -> None:
            monkeypatch.setattr(store, "claim", counted)
            with pytest.raises(OperationInProgress):
                run_once(self.pay, scope="s", key="k", lease=60, operation="meet", wait=0.6)

        run_once(meet, scope="s", key="k", lease=60, operation="meet")
        assert 3 <= len(looks) < 30
        assert set(looks) == {0}

    def test_a_call_in_doubt_is_held(self) -> None:
        """A named exception until somebody knows."""
        work: Callable[..., Any] = lambda operation: operation.call("charge", breaks)  # noqa: E731
        options: dict[str, Any] = {"lease": 60, "on_abandoned": "hold", "operation": "pay"}
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, scope="s", key="k", **options)
        with pytest.raises(OutcomeUnknown, match="whose outcome is unknown"):
            run_once(work, scope="s", key="k", **options)
        assert len(RUNS) == 1

    def test_reconcile_returns_a_result(self) -> None:
        """Or None to run again; anything else is refused."""
        work: Callable[..., Any] = lambda operation: operation.call("charge", breaks)  # noqa: E731
        options: dict[str, Any] = {"scope": "s", "key": "k", "lease": 60, "operation": "pay"}
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, **options)
        with pytest.raises(IdempotencyConfigurationError, match="return Result"):
            run_once(work, reconcile=lambda operation: "charged", **options)
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, reconcile=lambda operation: None, **options)
        found = run_once(work, reconcile=lambda operation: Result(operation.in_doubt, replayed=False), **options)
        assert found == Result(["charge"], replayed=False)
        assert run_once(work, **options) == Result(["charge"], replayed=True)

    @pytest.mark.django_db(transaction=True)
    def test_it_is_refused_inside_a_transaction(self) -> None:
        """Its claim could not commit first."""
        with transaction.atomic(), pytest.raises(IdempotencyConfigurationError, match="inside a transaction"):
            run_once(self.pay, scope="s", key="k", lease=60, operation="pay")


class TestMistakes:
    @pytest.mark.parametrize("work", [lambda: 1, partial(place), type("Callable", (), {"__call__": place})()])
    def test_work_without_a_name_needs_one(self, work: Any) -> None:
        """Two lambdas could be taken for each other, and the second would never run."""
        with pytest.raises(IdempotencyConfigurationError, match='Pass operation="…"'):
            run_once(work, scope="s", key="k")

    @pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ünï", None, 5])
    def test_bad_keys(self, key: Any) -> None:
        """Named, before anything is asked of the database."""
        with pytest.raises(InvalidKey, match="key="):
            run_once(place, scope="s", key=key)
        assert RUNS == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scope": ""}, "scope='': give a non-empty str"),
            ({"required": False}, "'required' is no option without a request. Possible are: ttl, wait"),
            ({"payload": object()}, "is neither bytes nor JSON"),
            ({"ttl": 0}, "ttl=0"),
            ({"on_abandoned": "hold"}, "is about leased mode"),
            ({"using": "nowhere"}, "nowhere"),
        ],
    )
    def test_bad_options(self, options: dict[str, Any], message: str) -> None:
        """With what to give instead."""
        with pytest.raises(Exception, match=message):
            run_once(place, **{"scope": "s", "key": "k", **options})
        assert RUNS == []

    def test_switched_off_the_work_just_runs(self) -> None:
        """As requests do."""
        with override_settings(IDEMPOTENCY={"ENABLED": False}):
            assert [run_once(place, scope="s", key="k").replayed for _ in range(2)] == [False, False]
            leased = run_once(TestLeased().pay, scope="s", key="k", lease=60, operation="o")
        assert leased.value["order"] == Order.objects.order_by("pk").last().pk
        assert not IdempotencyKey.objects.exists()

    def test_the_exceptions_have_one_base(self) -> None:
        """For a consumer that only wants to know whether to acknowledge."""
        assert all(issubclass(e, NotRun) for e in (OperationInProgress, OutcomeUnknown, PayloadMismatch, StoreBusy))


class TestAsynchronous:
    async def work(self) -> int:
        RUNS.append(connection.in_atomic_block)
        return (await Order.objects.acreate()).pk

    def test_coroutine_functions_and_plain_ones(self) -> None:
        """In the transaction, once."""

        async def twice() -> list[Any]:
            kinds = [(self.work, "async"), (place, "plain")]
            return [await arun_once(work, scope="s", key=key) for work, key in kinds for _ in range(2)]

        answers = async_to_sync(twice)()
        assert [answer.replayed for answer in answers] == [False, True, False, True]
        assert answers[0].value == answers[1].value
        assert Order.objects.count() == 2

    def test_leased(self) -> None:
        """With the asynchronous steps."""

        async def charge(*, amount: int) -> int:
            return amount

        async def pay(operation: Operation) -> Any:
            await operation.awrite("order", Order.objects.acreate, reference="awaited")
            await operation.acall("asynchronous", charge, amount=5)
            await operation.acall("plain", partial(dict), amount=6)
            return await operation.acall("charge", self.work)

        answers = [async_to_sync(arun_once)(pay, scope="s", key="k", lease=60, operation="pay") for _ in range(2)]
        assert [answer.replayed for answer in answers] == [False, True]
        assert Order.objects.filter(reference="awaited").count() == 1
        results = dict(IdempotencyStep.objects.values_list("name", "result"))
        assert (results["asynchronous"], results["plain"]) == ('{"value": 5}', '{"value": {"amount": 6}}')

    def test_another_payload_is_a_mismatch(self) -> None:
        async_to_sync(arun_once)(place, scope="s", key="k", payload="a")
        with pytest.raises(PayloadMismatch):
            async_to_sync(arun_once)(place, scope="s", key="k", payload="b")

    def test_a_plain_function_may_return_what_has_to_be_awaited(self) -> None:
        """As managers' asynchronous methods do."""
        answer = async_to_sync(arun_once)(lambda: self.work(), scope="s", key="k", operation="awaited")
        assert answer.value == Order.objects.get().pk


def handle(event: dict[str, Any]) -> Any:
    """Handles an event."""
    RUNS.append(event["id"])
    return {"order": Order.objects.create(reference=event["id"]).pk}


def handle_leased(event: dict[str, Any], *, operation: Operation, factor: int = 1) -> Any:
    return operation.call("charge", lambda: RUNS.append(factor))


async def handle_async(event: dict[str, Any]) -> Any:
    RUNS.append(event["id"])
    return (await Order.objects.acreate()).pk


async def handle_leased_async(event: dict[str, Any], operation: Operation) -> Any:
    async def charge() -> str:
        RUNS.append("charged")
        return "charged"

    return await operation.acall("charge", charge)


def by_name(*, event: dict[str, Any]) -> Any:
    RUNS.append("by name")
    return event["id"]


class Decorated:
    """Made anew in each test, so that a mutation of the decorator is seen."""

    def __init__(self) -> None:
        self.handle = once(scope="stripe", key=lambda event: event["id"], payload=lambda event: event["data"])(handle)
        self.handle_leased: Any = once(
            scope=lambda event, **_: event["from"], key=lambda event, **_: event["id"], lease=60
        )(handle_leased)
        self.handle_async: Any = once(scope="queue", key=lambda event: event["id"])(handle_async)
        self.handle_leased_async: Any = once(scope="queue", key=lambda event: event["id"], lease=60)(
            handle_leased_async
        )
        self.by_name = once(
            scope=lambda *, event: event["id"], key=lambda *, event: event["id"], payload=lambda *, event: event
        )(by_name)


@pytest.fixture
def decorated() -> Decorated:
    return Decorated()


class TestDecorator:
    def test_it_returns_the_result(self, decorated: Decorated) -> None:
        """As the function would, first time and again; it keeps its name."""
        event = {"id": "evt_1", "data": {"a": 1}}
        assert decorated.handle(event) == decorated.handle(event)
        assert RUNS == ["evt_1"]
        assert (decorated.handle.__name__, decorated.handle.__doc__) == ("handle", "Handles an event.")
        assert IdempotencyKey.objects.get().operation == f"{__name__}.handle"
        assert decorated.by_name(event=event) == decorated.by_name(event=event) == "evt_1"
        assert RUNS == ["evt_1", "by name"]

    def test_another_payload(self, decorated: Decorated) -> None:
        """Named."""
        decorated.handle({"id": "evt_1", "data": {"a": 1}})
        with pytest.raises(PayloadMismatch):
            decorated.handle({"id": "evt_1", "data": {"a": 2}})

    def test_leased(self, decorated: Decorated) -> None:
        """The operation comes as a keyword argument."""
        event = {"id": "evt_1", "from": "ci"}
        assert [decorated.handle_leased(event, factor=2) for _ in range(2)] == [None, None]
        assert RUNS == [2]
        assert IdempotencyKey.objects.get().scope == "ci"

    def test_asynchronous(self, decorated: Decorated) -> None:
        """A coroutine function stays one."""
        event = {"id": "evt_1"}
        first = async_to_sync(decorated.handle_async)(event)
        assert first == async_to_sync(decorated.handle_async)(event)
        assert (
            async_to_sync(decorated.handle_leased_async)(event)
            == async_to_sync(decorated.handle_leased_async)(event)
            == "charged"
        )
        assert RUNS == ["evt_1", "charged"]

    def test_a_lambda_is_refused_at_decoration(self) -> None:
        """It has no name that stays."""
        with pytest.raises(IdempotencyConfigurationError, match="has no name that stays the same"):
            once(scope="s", key=str)(lambda: None)


@pytest.mark.parametrize("lease", [None, 60])
def test_in_a_transaction_that_is_broken_django_says_so(lease: int | None) -> None:
    """Nothing is claimed, and nothing runs."""
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises((transaction.TransactionManagementError, IdempotencyConfigurationError)):
            run_once(place, scope="s", key="k", lease=lease)
    assert RUNS == []


@pytest.mark.only_on("postgresql")
class TestALeasedClaimThatFails:
    """A transaction that the database asks to repeat has done nothing yet: it is repeated once."""

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Let the next claims fail with real errors of the database."""
        store = store_for("default")
        claim, left = store.claim, []

        def claim_or_fail(wanted: Any) -> Any:
            if left:
                with connection.cursor() as cursor:
                    cursor.execute(f"DO $$ BEGIN RAISE SQLSTATE '{left.pop()}'; END $$")
            return claim(wanted)

        monkeypatch.setattr(store, "claim", claim_or_fail)
        return lambda *states: left.extend(states)

    @staticmethod
    def run() -> int:
        return run_once(lambda operation: operation.attempt, scope="s", key="k", operation="o", lease=60).value

    @pytest.mark.parametrize("state", ["40001", "40P01"])
    def test_once_it_is_repeated(self, failing: Callable[..., None], state: str) -> None:
        """The caller does not hear of it."""
        failing(state)
        assert self.run() == 1

    def test_twice_it_is_a_conflict(self, failing: Callable[..., None]) -> None:
        """Somebody else is at this key all the time."""
        failing("40001", "40P01")
        with pytest.raises(OperationInProgress):
            self.run()
        assert self.run() == 1

    def test_any_other_error_propagates(self, failing: Callable[..., None]) -> None:
        """And is not repeated."""
        failing("53100")
        with pytest.raises(DatabaseError):
            self.run()
        assert self.run() == 1


@pytest.mark.django_db(transaction=True)
def test_of_twenty_at_once_one_runs(in_threads: Callable[..., list[Any]]) -> None:
    """Real threads; the others are told, or get its result."""
    go = Event()

    def deliver(number: int) -> Any:
        if number == 19:
            go.set()
        assert go.wait(30)
        try:
            return run_once(place, scope="s", key="k", wait=10)
        except NotRun as error:
            return type(error)

    outcomes = in_threads(20, deliver)
    results = [o for o in outcomes if isinstance(o, Result)]
    assert [r.replayed for r in results].count(False) == 1
    assert {o for o in outcomes if not isinstance(o, Result)} <= {OperationInProgress, StoreBusy}
    assert (len(RUNS), Order.objects.count()) == (1, 1)


@idempotent
def protected(request: HttpRequest) -> HttpResponse:
    """Handles an event that may also come by another way."""
    result = run_once(place, scope="events", key=request.headers["X-Event"])
    if request.headers.get("X-Fail"):
        raise ValueError("the view fails")
    return JsonResponse({"order": result.value.pk, "replayed": result.replayed})


urlpatterns = [path("events", protected)]


@pytest.mark.urls("tests.integration.test_once")
class TestInsideAProtectedView:
    def test_each_key_is_its_own(self, post: Any) -> None:
        """Two requests about one event: two keys of requests, one order."""
        answers = [post("/events", key=f"r{number}", headers={"X-Event": "e1"}) for number in (1, 2, 1)]
        assert [answer.json()["replayed"] for answer in answers] == [False, True, False]
        assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "false", "true"]
        assert (len(RUNS), Order.objects.count()) == (1, 1)

    def test_they_are_rolled_back_together(self, post: Any) -> None:
        """The view fails after the work: neither key is used up."""
        with pytest.raises(ValueError, match="the view fails"):
            post("/events", headers={"X-Event": "e1", "X-Fail": "1"})
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
        assert post("/events", headers={"X-Event": "e1"}).json()["replayed"] is False
