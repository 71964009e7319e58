"""`assert_idempotent(crash_at_each_step=True)`: stopped at each boundary, retried, and judged."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client

from django_idempotency import Operation, Result, get_operation, idempotent, run_once
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.signals import key_event
from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Order
from tests.testing import leased_urls
from tests.testing.endpoint_urls import DATA
from tests.testing.leased_urls import LEASE, MADE, charge, leased, sends_its_key, sends_no_key
from tests.views import charges, creates, paths

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.test_crashes")]
COUNTER = itertools.count()


@pytest.fixture(autouse=True)
def _counts_anew() -> None:
    global COUNTER
    COUNTER = itertools.count()


# --- views that survive each crash


async def asynchronous(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)

    key = operation.derive_key("charge")  # before the call, so that it can be made again
    operation.derive_key("mail")

    async def acharge() -> dict[str, str]:
        return charge(key)

    charged = await operation.acall("charge", acharge)
    await operation.acall("mail", lambda: acharge())
    order = await operation.awrite("order", Order.objects.acreate, reference=charged["id"])
    return JsonResponse({"order": order.pk, "charge": charged["id"]}, status=201)


def looks_up(operation: Operation) -> None:
    """Record the charge that the books show."""
    if "charge" in operation.in_doubt and MADE:
        operation.call("charge", lambda: {"id": f"ch_{MADE[-1]}"})


def answers(operation: Operation) -> HttpResponse | None:
    """End the operation itself, once the order is there."""
    done = Order.objects.filter(reference=f"ch_{operation.derive_key('charge')}").first()
    body = None if done is None else {"order": done.pk, "charge": done.reference, "attempt": operation.attempt}
    return None if body is None else JsonResponse(body, status=201)


def writes_at_last(request: HttpRequest) -> HttpResponse:
    """The order is written when a step ends, or when the step is stopped."""
    operation = get_operation(request)
    try:
        operation.call("charge", charge, operation.derive_key("charge"))
    finally:
        if not Order.objects.filter(reference=operation.key).exists():
            Order.objects.create(reference=operation.key)
    return JsonResponse({})


def place(operation: Operation) -> dict[str, Any]:
    charged = operation.call("charge", charge, operation.derive_key("charge"))
    return {"order": operation.write("order", Order.objects.create, reference=charged["id"]).pk}


def once(request: HttpRequest) -> HttpResponse:
    """`run_once` inside of an unprotected view, which marks its responses."""
    key = request.headers.get("Idempotency-Key", "").strip('"')
    if not key:
        return HttpResponse(status=400)
    result: Result[Any] = run_once(place, scope="shop", key=key, payload=request.POST.dict(), lease=LEASE)
    return JsonResponse(result.value, headers={"Idempotency-Replayed": str(result.replayed).lower()})


# --- views that are broken on purpose


class Charge:
    def __call__(self) -> dict[str, str]:
        return charge()


CALLABLES: list[Callable[[], Any]] = [Charge, lambda: partial(Charge()), lambda: lambda: charge(), lambda: charge]
"""Each makes what an attempt calls: an object, partial functions, and functions."""


def calls(request: HttpRequest) -> HttpResponse:
    return charges(CALLABLES[int(request.GET["with"])](), keyed=False)(request)


def writes_outside(request: HttpRequest) -> HttpResponse:
    """The order is no step."""
    operation = get_operation(request)
    operation.call("charge", charge, operation.derive_key("charge"))
    return creates(200)(request)


def renames_steps(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    operation.call(f"charge {next(COUNTER)}", charge)
    return JsonResponse({})


def renames_writes(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    operation.write(f"order {next(COUNTER)}", Order.objects.create)
    return JsonResponse({})


def swallows_everything(request: HttpRequest) -> HttpResponse:
    """Code around the protected view answers whatever happens."""
    try:
        return leased(request)
    except BaseException:
        return JsonResponse({})


def fails_later(request: HttpRequest) -> HttpResponse:
    """Expects to be the first attempt."""
    operation = get_operation(request)
    operation.write("order", Order.objects.create)
    if operation.attempt > 1 and "raise" in request.GET:
        raise LookupError("no cart")
    return JsonResponse({"first": True} if operation.attempt == 1 else {"again": True})


def takes_once(request: HttpRequest) -> HttpResponse:
    """Takes the same body only once."""
    if Order.objects.filter(reference="once").exists():
        return HttpResponse(status=400)
    get_operation(request).write("order", Order.objects.create, reference="once")
    return HttpResponse(status=201)


def differs(request: HttpRequest) -> HttpResponse:
    """Takes other steps with each request."""
    for number in range(2 - next(COUNTER)):
        get_operation(request).write(f"order {number}", Order.objects.create)
    return HttpResponse()


LEASED = (asynchronous, writes_at_last, writes_outside, renames_steps, renames_writes, fails_later, takes_once, differs)
urlpatterns = leased_urls.urlpatterns + paths(
    once,
    swallows_everything,
    *(idempotent(lease=LEASE)(view) for view in LEASED),
    calls=idempotent(lease=LEASE, on_abandoned="retry")(calls),
    looks_up=idempotent(lease=LEASE, on_abandoned="hold", reconcile=looks_up, operation="POST looks_up")(sends_no_key),
    answers=idempotent(lease=LEASE, reconcile=answers, operation="POST answers")(sends_its_key),
    atomic=idempotent(creates()),
)


@pytest.fixture
def crashes(client: Client) -> Callable[..., Any]:
    return lambda path, **arguments: assert_idempotent(
        client, path, DATA, **{"creates": Order, "crash_at_each_step": True, **arguments}
    )


@pytest.fixture
def fails(crashes: Callable[..., Any]) -> Callable[..., str]:
    def check(path: str, **arguments: Any) -> str:
        with pytest.raises(AssertionError) as caught:
            crashes(path, **arguments)
        return str(caught.value)

    return check


class TestGoodViews:
    @pytest.mark.parametrize("path", ["/leased", "/answers"])
    def test_a_view_that_sends_its_derived_key(self, crashes: Callable[..., Any], path: str) -> None:
        """6 boundaries and 2 undisturbed requests: 8 keys, 8 orders, and one charge made twice under its key."""
        crashes(path)
        assert Order.objects.count() == 8
        assert [count for _, count in Counter(MADE).most_common(2)] == [2, 1]
        assert set(IdempotencyKey.objects.values_list("status", flat=True)) == {"completed"}
        assert not IdempotencyStep.objects.filter(finished_at=None).exists()

    def test_a_held_key(self, crashes: Callable[..., Any]) -> None:
        """Its retry gets 409 while the call is in doubt. No call is made twice."""
        crashes("/held")
        assert len(MADE) == 7
        assert Order.objects.count() == 6

    @pytest.mark.parametrize(
        ("path", "arguments", "orders"),
        [
            ("/looks_up", {}, 8),  # what reconcile records has a function of its own: that is no second call
            ("/no_derived_key", {"repeatable": ["charge"]}, 8),  # the test says that the call may be repeated
            ("/once", {"changed": None}, 8),  # the steps of run_once are stopped like those of a view
            ("/writes_at_last", {}, 6),  # the statements of its `finally` are refused
        ],
    )
    def test_it_survives(self, crashes: Callable[..., Any], path: str, arguments: dict[str, Any], orders: int) -> None:
        crashes(path, **arguments)
        assert Order.objects.count() == orders

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(("path", "boundaries"), [("/leased", 6), ("/asynchronous", 9)])
    def test_each_retry_takes_a_dead_workers_key_over(
        self, crashes: Callable[..., Any], path: str, boundaries: int
    ) -> None:
        """Nothing has failed the key: a process that was killed could not. Afterwards nothing is watched any more."""
        before = Operation.call, Operation.write, Operation.derive_key
        events: Counter[str] = Counter()

        def count(event: str, **kwargs: Any) -> None:
            events.update([event])

        key_event.connect(count)
        try:
            crashes(path, repeatable=["mail"], transaction=connection.vendor != "sqlite")
        finally:
            key_event.disconnect(count)
        assert (events["taken_over"], events["released"]) == (boundaries, 0)
        assert (Operation.call, Operation.write, Operation.derive_key) == before
        assert connections["default"].execute_wrappers == []


class TestBrokenViews:
    def test_a_call_without_a_derived_key(self, fails: Callable[..., str]) -> None:
        """The message says where, what ran twice, and what to do."""
        message = fails("/no_derived_key")
        first, undisturbed, retry, told, advice = message.split("\n  ")
        assert first == (
            "POST /no_derived_key: stopped after the function of call 'charge' ran, before the COMMIT, call 'charge' "
            "was made twice, and the called service cannot know that."
        )
        assert undisturbed.startswith("Undisturbed: 201 with Idempotency-Replayed: false")
        assert retry.startswith("Retry: 201 with Idempotency-Replayed: false")
        assert told == "Ran before the stop: call 'charge'. Ran in the retry: call 'charge', write 'order'."
        assert advice == (
            "Send operation.derive_key('charge') with the call, or set on_abandoned='hold'. If a second call is "
            "harmless, pass repeatable=['charge']."
        )

    @pytest.mark.parametrize("function", range(len(CALLABLES)))
    def test_a_function_that_each_attempt_makes_anew(self, fails: Callable[..., str], function: int) -> None:
        """It is called twice, whatever it is."""
        assert "before the COMMIT, call 'charge' was made twice" in fails(f"/calls?with={function}")

    def test_a_write_outside_of_its_step(self, fails: Callable[..., str]) -> None:
        """It commits, and the retry writes again."""
        assert (
            "stopped before the commit of the response, the stopped request and its retry created 2 Order rows; an "
            "undisturbed request creates 1." in fails("/writes_outside")
        )

    def test_a_step_with_a_new_name_each_time(self, fails: Callable[..., str]) -> None:
        """The result of a write is not found, and a call under a new name is refused before it is made."""
        message = fails("/renames_writes", creates=None)
        assert re.search(r"write 'order \d+' ran again under another name, 'order \d+'\.", message)
        assert re.search(r"Ran before the stop: write 'order \d+'\. Ran in the retry: write 'order \d+'\.", message)
        message = fails("/renames_steps", creates=None)
        assert re.search(r"the retry raised .*operation\.call\('charge \d+'\) would make a new call", message)

    def test_a_view_that_catches_everything(self, fails: Callable[..., str]) -> None:
        """It cannot be stopped, and says so."""
        assert "stopped before call 'charge', the view went on" in fails("/swallows_everything", creates=None)

    @pytest.mark.parametrize(
        ("path", "headline"),
        [
            ("/fails_later?raise", "stopped before write 'order', the retry raised LookupError('no cart')"),
            ("/fails_later", "stopped before write 'order', the retry got 200, or another kind of response"),
            ("/differs", "a request under a new key never came to this point: before write 'order 0'."),
        ],
    )
    def test_a_retry_that_ends_otherwise(self, fails: Callable[..., str], path: str, headline: str) -> None:
        """An exception, another kind of body; or a boundary is never reached."""
        assert headline in fails(path, creates=None)

    def test_a_body_that_is_taken_only_once(self, fails: Callable[..., str]) -> None:
        """The second request would make no step, so nothing would be checked."""
        message = fails("/takes_once", changed=None)
        assert "the first request got 201, but the same request under another key did not." in message
        assert "pass a function as data" in message

    def test_an_atomic_view_has_no_steps(self, crashes: Callable[..., Any]) -> None:
        """There is nothing to stop."""
        with pytest.raises(RuntimeError, match=r"found no step to stop at.*it is one transaction"):
            crashes("/atomic")
