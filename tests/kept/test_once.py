"""`run_once`: the same promises without HTTP."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Lower
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import override_settings
from django.urls import path

from django_idempotency import (
    IdempotencyConfigurationError,
    Operation,
    PayloadMismatch,
    Result,
    ResultNotStorable,
    idempotent,
    once,
    run_once,
)
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.key_syntax import InvalidKey
from django_idempotency.maintenance.entered import entered_answer
from django_idempotency.models import IdempotencyKey
from tests.keyed import PARTS
from tests.shopapp.models import Keyed, Order
from tests.works import RUNS, breaks, place

pytestmark = pytest.mark.django_db


class TestAtomic:
    @pytest.mark.parametrize("caught", [False, True])
    def test_work_that_meets_its_own_key_is_refused_and_logged(
        self, caught: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is a mistake, and no key that waits for a person. The log has it also if the work catches the error."""

        def again() -> str:
            Order.objects.create()
            try:
                run_once(again, scope="s", key="k", operation="loop")
            except IdempotencyConfigurationError:
                if not caught:
                    raise
            return "done"

        if caught:
            assert run_once(again, scope="s", key="k", operation="loop").value == "done"
        else:
            with pytest.raises(IdempotencyConfigurationError, match="'loop' came back to its own key"):
                run_once(again, scope="s", key="k", operation="loop")
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == ((1, 1) if caught else (0, 0))
        (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "came back to its own key" in told.message

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


class TestResolving:
    def test_equal_options_are_resolved_once(self) -> None:
        """Each call makes its options anew."""
        resolve.cache_clear()
        for key in range(2):
            run_once(place, scope="s", key=key, operation="o", ttl=timedelta(hours=2), wait=1)
        assert resolve.cache_info().misses == 1


class TestMistakes:
    @pytest.mark.parametrize("work", [lambda: 1, partial(place), type("Callable", (), {"__call__": place})()])
    def test_work_without_a_name_needs_one(self, work: Any) -> None:
        """Two lambdas could be taken for each other, and the second would never run."""
        with pytest.raises(IdempotencyConfigurationError, match='Pass operation="…"'):
            run_once(work, scope="s", key="k")

    @pytest.mark.parametrize("key", [None, True, 5.0])
    def test_a_key_that_is_no_text(self, key: Any) -> None:
        """It is named, and nothing runs. Bad texts are in tests/contracts."""
        with pytest.raises(InvalidKey, match="key="):
            run_once(place, scope="s", key=key)
        assert RUNS == []

    @pytest.mark.parametrize("key", [17, UUID("8e03978e-40d5-43dd-bc93-6894a57f9324")])
    def test_an_int_or_a_uuid_stands_for_its_text(self, key: Any) -> None:
        """A primary key can be the key of a task."""
        results = [run_once(place, scope="s", key=sent) for sent in (key, str(key))]
        assert [result.replayed for result in results] == [False, True]

    @pytest.mark.parametrize("options", [{"scope": "", "key": len}, {"scope": "s", "key": "k"}])
    def test_once_says_what_is_missing(self, options: Any) -> None:
        """Python itself refuses `once` without parentheses, without a scope or without a key."""
        with pytest.raises(IdempotencyConfigurationError, match="needs to know the owner and the key"):
            once(**options)
        with pytest.raises(TypeError, match="positional argument"):
            once(place)  # type: ignore[call-arg, misc]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scope": ""}, "scope='': pass a non-empty str"),
            ({"required": False}, "unknown option without a request 'required'. Known are: ttl, wait"),
            ({"payload": object()}, "is neither bytes nor JSON"),
            ({"ttl": 0}, "ttl=0"),
            ({"on_abandoned": "hold"}, "applies to leased mode only"),
            ({"using": "nowhere"}, "nowhere"),
        ],
    )
    def test_bad_options(self, options: dict[str, Any], message: str) -> None:
        """With what to give instead."""
        with pytest.raises(Exception, match=message):
            run_once(place, **{"scope": "s", "key": "k", **options})
        assert RUNS == []


@idempotent
def protected(request: HttpRequest) -> HttpResponse:
    """Handles an event that may also come by another way."""
    result = run_once(place, scope="events", key=request.headers["X-Event"])
    if request.headers.get("X-Fail"):
        raise ValueError("the view fails")
    return JsonResponse({"order": result.value.pk, "replayed": result.replayed})


urlpatterns = [path("events", protected)]


@pytest.mark.urls("tests.kept.test_once")
class TestInsideAProtectedView:
    def test_each_key_is_its_own(self, post: Any) -> None:
        """Two requests about one event: two keys of requests, one order."""
        answers = [post("/events", key=f"r{number}", headers={"X-Event": "e1"}) for number in (1, 2, 1)]
        assert [answer.json()["replayed"] for answer in answers] == [False, True, False]
        assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "false", "true"]
        assert (len(RUNS), Order.objects.count()) == (1, 1)


# --- results as text (those of steps are in test_operation.py)


@pytest.mark.parametrize("value", [0, False, "", [], {}, "a\x00b", "\ud800"], ids=repr)
def test_no_value_is_taken_for_a_missing_one(value: Any) -> None:
    """Neither a false one, nor a text that a database would refuse, from the work or from its call."""
    atomic = [run_once(lambda: value, scope="s", key="k", operation="o") for _ in range(2)]
    assert [(answer.value, type(answer.value), answer.replayed) for answer in atomic] == [
        (value, type(value), False),
        (value, type(value), True),
    ]
    calls: list[int] = []

    def charges(operation: Operation) -> Any:
        charged = operation.call("charge", lambda: calls.append(1) or value)
        if len(calls) == operation.attempt:
            raise ValueError("after the call")
        return charged

    with pytest.raises(ValueError, match="after the call"):
        run_once(charges, scope="s", key="leased", lease=60, operation="pay")
    leased = [run_once(charges, scope="s", key="leased", lease=60, operation="pay") for _ in range(2)]
    assert [(answer.value, type(answer.value), answer.replayed) for answer in leased] == [
        (value, type(value), False),
        (value, type(value), True),
    ]
    assert calls == [1]


@pytest.mark.django_db(transaction=True)
def test_work_after_the_commit_can_be_leased() -> None:
    """A callback of `on_commit` starts it; it runs once, and a replay of the outer work starts nothing."""
    charged: list[str] = []

    def charge(operation: Operation) -> Any:
        operation.call("charge", lambda: charged.append(operation.derive_key("charge")))
        return operation.write("order", Order.objects.create, reference="charged").pk

    def outer() -> int:
        transaction.on_commit(partial(run_once, charge, scope="s", key="inner", lease=60, operation="charge"))
        return Order.objects.create(reference="outer").pk

    assert [run_once(outer, scope="s", key="outer", operation="outer").replayed for _ in range(2)] == [False, True]
    assert run_once(charge, scope="s", key="inner", lease=60, operation="charge").replayed is True
    assert len(charged) == 1
    assert sorted(Order.objects.values_list("reference", flat=True)) == ["charged", "outer"]
    assert sorted(IdempotencyKey.objects.values_list("key", "status")) == [
        ("inner", "completed"),
        ("outer", "completed"),
    ]


def test_an_instance_is_handed_on_as_it_is() -> None:
    """The first caller gets the object that the work has returned, with its attributes that are no fields."""
    order = Order.objects.create()
    assert run_once(lambda: order, scope="s", key="k", operation="o").value is order


def test_a_row_with_a_composite_key_is_fetched_again() -> None:
    """By its exact key, of which each part has a type of its own."""
    work = partial(Keyed.objects.create, **PARTS)
    results = [run_once(work, operation="keyed", scope="s", key="k") for _ in range(2)]
    row = Keyed.objects.get()
    assert [(result.value, result.replayed) for result in results] == [(row, False), (row, True)]


@pytest.mark.parametrize("changes", [None, {"name": Lower(Value("A"))}])
def test_a_result_that_cannot_be_kept_rolls_back(changes: Any) -> None:
    """Else a redelivery would have nothing to return. What an expression in a key stands for is not known."""

    def work() -> object:
        row = Keyed.objects.create(**PARTS)
        vars(row).update(changes or {})
        return row if changes else object()

    with pytest.raises(ResultNotStorable):
        run_once(work, scope="s", key="k", operation="o")
    assert (Keyed.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_what_a_person_closed_it_with_is_its_value() -> None:
    """JSON by its content type, and any other text as it is. What is stored for a result stands for that result."""
    order = run_once(place, scope="s", key="k").value
    gone = '{"model": "shop.Gone", "pk": 1, "using": "default"}'
    for body, value in (
        ('{"order": 59}', {"order": 59}),
        ('{"model": "Tesla"}', {"model": "Tesla"}),
        ('{"value": 5, "currency": "EUR"}', {"value": 5, "currency": "EUR"}),
        ("[59, null]", [59, None]),
        ('"59"', "59"),
        ('{"value": {"order": 59}}', {"order": 59}),
        (f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}', order),
        (gone, gone),
        ("refunded by hand", "refunded by hand"),
        ("59", "59"),
        ("", ""),
    ):
        answer = entered_answer(200, body)
        IdempotencyKey.objects.update(headers=json.dumps(answer.headers), body=answer.body)
        assert run_once(place, scope="s", key="k") == Result(value, replayed=True)
    IdempotencyKey.objects.update(headers='[["Content-Type", "application/json ; charset=utf-8"]]', body=b"[59]")
    assert run_once(place, scope="s", key="k").value == [59]
    IdempotencyKey.objects.update(body=b"\xff")
    assert run_once(place, scope="s", key="k").value == "\ufffd"
    IdempotencyKey.objects.update(body=None)
    assert run_once(place, scope="s", key="k").value == ""


@pytest.mark.django_db(databases=["default", "other"])
def test_an_instance_is_fetched_from_its_own_database() -> None:
    """Where another database has another object under the same number."""
    Order.objects.create(pk=7, reference="not this one")

    def work() -> Order:
        return Order.objects.using("other").create(pk=7, reference="this one")

    answers = [run_once(work, scope="s", key="k", operation="o") for _ in range(2)]
    assert [(answer.value.reference, answer.replayed) for answer in answers] == [
        ("this one", False),
        ("this one", True),
    ]


# --- the `once` decorator


class TestDecorator:
    """Functions are decorated in each test, so that a mutation of the decorator is seen."""

    def test_it_returns_the_result(self) -> None:
        """As the function would, first time and again; it keeps its name."""

        def handle(event: dict[str, Any]) -> Any:
            """Handles an event."""
            RUNS.append(event["id"])
            return {"order": Order.objects.create(reference=event["id"]).pk}

        handled = once(scope="stripe", key=lambda event: event["id"], operation="o", payload=lambda event: event)(
            handle
        )
        event = {"id": "evt_1", "data": {"a": 1}}
        assert handled(event) == handled(event)
        assert RUNS == ["evt_1"]
        assert (handled.__name__, handled.__doc__) == ("handle", "Handles an event.")
        with pytest.raises(PayloadMismatch):
            handled({**event, "data": 1})

    def test_leased(self) -> None:
        """The operation comes as a keyword argument."""

        def charge(event: str, *, operation: Operation, factor: int = 1) -> Any:
            return operation.call("charge", lambda: RUNS.append(factor))

        named: Any = {name: lambda event, **_: event for name in ("scope", "key")}
        handled: Any = once(operation="o", lease=60, **named)(charge)
        assert [handled("ci", factor=2) for _ in range(2)] == [None, None]
        assert (RUNS, IdempotencyKey.objects.get().scope) == ([2], "ci")

    @pytest.mark.parametrize("lease", [None, 60])
    def test_asynchronous(self, lease: int | None) -> None:
        """A coroutine function stays one."""

        async def charge(event: str = "") -> str:
            RUNS.append("charged")
            return "charged"

        async def charge_in_a_step(event: str, operation: Operation) -> Any:
            return await operation.acall("charge", charge)

        handled: Any = once(scope="queue", key=lambda event: event, operation="o", lease=lease)(
            charge_in_a_step if lease else charge
        )
        assert [async_to_sync(handled)("evt_1") for _ in range(2)] == ["charged"] * 2
        assert RUNS == ["charged"]

    def test_a_lambda_is_refused_at_decoration(self) -> None:
        """It has no name that stays."""
        with pytest.raises(IdempotencyConfigurationError, match="has no name that stays the same"):
            once(scope="s", key=str)(lambda: None)

    def test_arguments_by_name(self) -> None:
        """The callables get what the function gets."""
        named: Any = {name: lambda *, event: event for name in ("scope", "key", "payload")}
        handled = once(operation="o", **named)(lambda *, event: RUNS.append(event) or event)
        assert handled(event="e") == handled(event="e") == "e"
        assert RUNS == ["e"]


@pytest.mark.skipif(find_spec("django.tasks") is None, reason="this Django has no tasks")
@pytest.mark.django_db
def test_a_task_that_is_delivered_twice() -> None:
    """The second run returns the first one's result."""
    backend = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    with override_settings(TASKS=backend):
        from tests.frameworks.jobs.tasks import place_order

        results = [place_order.enqueue("order") for _ in range(2)]
    assert results[0].return_value == results[1].return_value == Order.objects.get().pk
