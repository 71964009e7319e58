"""Steps and `run_once` mean the same, protected or not, except for results that can't be kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import IdempotencyConfigurationError, Operation, ResultNotStorable, idempotent, run_once
from django_idempotency.engine.protocol.key_syntax import InvalidKey
from django_idempotency.views import IdempotencyMixin
from tests.backends import MEMORY
from tests.leases import breaks
from tests.shopapp.models import Order
from tests.views import view_class

pytestmark = pytest.mark.django_db
SWITCHES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "protected": ({}, {}, {"Idempotency-Key": "k"}),
    "observed": ({}, {"observe": True}, {"Idempotency-Key": "k"}),
    "disabled": ({"ENABLED": False}, {}, {"Idempotency-Key": "k"}),
    "keyless": ({}, {"required": False}, {}),
}
"""The settings, the view's options and the request's headers."""
Ask = Callable[..., Any]
CALLS: list[str] = []


class Receipt:
    """An SDK's own object."""


def called(name: str, value: Any = "done") -> Callable[[], Any]:
    return lambda: CALLS.append(name) or value


@pytest.fixture(params=SWITCHES)
def switch(request: pytest.FixtureRequest, settings: Any, caplog: pytest.LogCaptureFixture) -> str:
    settings.IDEMPOTENCY = {**SWITCHES[request.param][0], "BACKENDS": {"events": MEMORY}}
    caplog.set_level(logging.ERROR, "django_idempotency")
    CALLS.clear()
    return str(request.param)


def function(options: dict[str, Any], view: Any) -> Any:
    return idempotent(**options)(view)


def non_atomic(options: dict[str, Any], view: Any) -> Any:
    return transaction.non_atomic_requests(function(options, view))


def mixin(options: dict[str, Any], view: Any) -> Any:
    return view_class(IdempotencyMixin, View, post=view, idempotency=options).as_view()


def handler(options: dict[str, Any], view: Any) -> Any:
    """Its mark doesn't reach the URL callback, so Django opens its own transaction."""
    return method_decorator(idempotent(**options), name="post")(view_class(post=view)).as_view()


@pytest.fixture
def ask(switch: str, settings: Any) -> Ask:
    """Run this work in a view, and return what it returned or raise what it raised."""

    def send(work: Callable[[Operation], Any], form: Ask = function, **options: Any) -> Any:
        said: list[Any] = []

        def view(request: HttpRequest) -> JsonResponse:
            said.append(work(request.idempotency))  # type: ignore[attr-defined]
            return JsonResponse({}, status=201)

        _, switched, headers = SWITCHES[switch]
        settings.ROOT_URLCONF = module = ModuleType("urls_of_the_switch")
        given: dict[str, Any] = {"lease": 60, "operation": "pay", **switched, **options}
        module.urlpatterns = [path("pay", form(given, view))]  # type: ignore[attr-defined]
        assert Client().post("/pay", headers=headers).status_code == 201
        return said[0]

    return send


def refused(ask: Ask, work: Callable[[Operation], Any], match: str, **options: Any) -> None:
    with pytest.raises(IdempotencyConfigurationError, match=match):
        ask(work, **options)
    assert CALLS == []


# --- what is the same


@pytest.mark.parametrize("kind", ["call", "fetch", "write"])
def test_a_result_is_converted_as_every_retry_will_read_it(ask: Ask, kind: str) -> None:
    value = {"amount": Decimal("1.10"), "parts": (1, 2)}
    assert ask(lambda operation: getattr(operation, kind)("step", lambda: value)) == {"amount": "1.10", "parts": [1, 2]}


def test_an_instance_stays_one(ask: Ask) -> None:
    assert ask(lambda operation: operation.write("order", Order.objects.create, reference="1")) == Order.objects.get()


def test_the_results_are_those_of_all_finished_steps(ask: Ask) -> None:
    def reads(operation: Operation) -> Any:
        operation.fetch("rate", lambda: Decimal("1.10"))
        operation.call("charge", lambda: {"id": "ch_1"})
        operation.write("order", Order.objects.create, reference="1")
        return operation.results, operation.in_doubt, operation.lost

    assert ask(reads) == ({"rate": "1.10", "charge": {"id": "ch_1"}, "order": Order.objects.get()}, (), ())


def test_a_call_that_raised_is_in_doubt(ask: Ask) -> None:
    def catches(operation: Operation) -> Any:
        with pytest.raises(Exception, match="it broke"):
            operation.call("charge", breaks)
        (doubt,) = operation.doubts.values()
        return operation.in_doubt, [*operation.doubts], doubt.keyed, doubt.started_at <= timezone.now()

    assert ask(catches) == (("charge",), ["charge"], False, True)


@pytest.mark.parametrize("lease", [60, None])
def test_it_knows_the_request(ask: Ask, lease: int | None) -> None:
    assert ask(lambda operation: operation.request.path, lease=lease) == "/pay"


@pytest.mark.parametrize("name", ["", "x" * 101, 5])
def test_a_name_that_is_none_is_refused(ask: Ask, name: Any) -> None:
    refused(ask, lambda operation: operation.call(name, called("charge")), "is not a valid step name")


@pytest.mark.parametrize("kind", ["call", "fetch", "write"])
def test_a_coroutine_is_refused(ask: Ask, kind: str) -> None:
    """With its asynchronous twin."""

    async def charge() -> None:
        CALLS.append("charge")

    refused(ask, lambda operation: getattr(operation, kind)("charge", charge), rf"await operation\.a{kind}\('charge'")


@pytest.mark.parametrize(("outer", "inner"), [("fetch", "call"), ("call", "write"), ("call", "call")])
def test_a_step_inside_another_one_is_refused(ask: Ask, outer: str, inner: str) -> None:
    """A retry that finds the result of the outer one would never ask for the inner one."""

    def nested(operation: Operation) -> Any:
        return getattr(operation, outer)("outer", lambda: getattr(operation, inner)("inner", called("inner")))

    refused(ask, nested, "'inner' was started inside the function of step 'outer'")


def test_a_name_that_is_used_again_is_refused(ask: Ask) -> None:
    def twice(operation: Operation) -> Any:
        operation.fetch("charge", lambda: 1)
        operation.call("charge", called("charge"))

    refused(ask, twice, "'charge' was used twice in one attempt")


@pytest.mark.parametrize("kind", ["call", "write"])
def test_a_step_inside_a_transaction_is_refused(ask: Ask, kind: str) -> None:
    def wraps(operation: Operation) -> Any:
        with transaction.atomic():
            getattr(operation, kind)("charge", called("charge"))

    refused(ask, wraps, rf"operation\.{kind}\('charge'\) was reached inside a transaction of database 'default'")


@pytest.mark.parametrize("form", [function, non_atomic, mixin])
@pytest.mark.usefixtures("atomic_requests")
class TestUnderAtomicRequests:
    """Protected, its transaction isn't opened; otherwise, one surrounds the view as it would without the package."""

    def test_it_is_not_the_works_own(self, ask: Ask, form: Ask) -> None:
        assert ask(lambda operation: operation.call("charge", called("charge")), form) == "done"

    @pytest.mark.parametrize("kind", ["call", "write"])
    def test_one_block_of_the_works_own_is_refused(self, ask: Ask, form: Ask, kind: str) -> None:
        """By the project's own code or by a decorator: the number of blocks says nothing."""

        @transaction.atomic
        def wraps(operation: Operation) -> Any:
            getattr(operation, kind)("charge", called("charge"))

        refused(ask, wraps, rf"operation\.{kind}\('charge'\) was reached inside a transaction", form=form)


@pytest.mark.usefixtures("atomic_requests")
def test_where_django_opens_it_itself_a_step_is_refused(ask: Ask) -> None:
    """Protected, the handler can't run at all."""
    refused(
        ask,
        lambda operation: operation.call("charge", called("charge")),
        "was reached inside a transaction of database 'default'",
        form=handler,
    )


@pytest.mark.usefixtures("atomic_requests")
def test_work_that_surrounds_itself_with_a_block_is_refused_in_run_once(settings: Any) -> None:
    """Outside a request, there is no transaction of ATOMIC_REQUESTS."""
    CALLS.clear()
    for switches in ({}, {"ENABLED": False}):
        settings.IDEMPOTENCY = switches
        with transaction.atomic(), pytest.raises(IdempotencyConfigurationError, match="was reached inside a trans"):
            once(lambda operation: CALLS.append("work"), lease=60)
        assert CALLS == []


@pytest.mark.parametrize("kind", ["call", "fetch", "write", "renew"])
def test_one_transaction_has_no_steps(ask: Ask, kind: str) -> None:
    args = () if kind == "renew" else ("step", called("step"))
    refused(ask, lambda operation: getattr(operation, kind)(*args), "are for leased mode", lease=None)


def test_on_an_event_loop_too(switch: str, settings: Any) -> None:
    """What a coroutine returns is converted, and a transaction is not for it, either."""
    said: list[Any] = []

    async def charge() -> Any:
        return (1, 2)

    async def view(request: HttpRequest) -> JsonResponse:
        operation: Operation = request.idempotency  # type: ignore[attr-defined]
        said.append((await operation.acall("charge", charge), await operation.awrite("order", charge)))
        await operation.arenew()
        return JsonResponse({}, status=201)

    _, options, headers = SWITCHES[switch]
    settings.ROOT_URLCONF = module = ModuleType("urls_of_the_switch")
    protected = idempotent(lease=60, operation="pay", **options)(view)
    module.urlpatterns = [path("pay", protected)]  # type: ignore[attr-defined]
    assert async_to_sync(AsyncClient().post)("/pay", headers=headers).status_code == 201
    assert said == [([1, 2], [1, 2])]


@pytest.mark.parametrize("kind", ["call", "fetch", "write"])
def test_a_step_that_would_block_the_event_loop_is_refused(switch: str, settings: Any, kind: str) -> None:
    """In a coroutine, whose step has another name."""

    async def view(request: HttpRequest) -> JsonResponse:
        getattr(request.idempotency, kind)("charge", called("charge"))  # type: ignore[attr-defined]
        raise AssertionError

    _, options, headers = SWITCHES[switch]
    settings.ROOT_URLCONF = module = ModuleType("urls_of_the_switch")
    module.urlpatterns = [path("pay", idempotent(lease=60, operation="pay", **options)(view))]  # type: ignore[attr-defined]
    with pytest.raises(IdempotencyConfigurationError, match=rf"await operation\.a{kind}\('charge', …\)"):
        async_to_sync(AsyncClient().post)("/pay", headers=headers)
    assert CALLS == []


# --- what is not


@pytest.mark.parametrize("kind", ["call", "fetch", "write"])
def test_a_result_that_cannot_be_kept_is_an_error_or_is_handed_on(
    ask: Ask, switch: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without protection, an error after the charge would make a client without a key charge again."""

    def pays(operation: Operation) -> Any:
        value = getattr(operation, kind)("charge", called("charge", Receipt()))
        return type(value), type(operation.results["charge"]), operation.lost

    error = "Receipt cannot be kept as JSON (Object of type Receipt is not JSON serializable)."
    if switch == "protected":
        with pytest.raises(ResultNotStorable, match=r"^Receipt cannot be kept as JSON"):
            ask(pays)
        return
    with pytest.warns(RuntimeWarning, match="Protected, it raises ResultNotStorable") as warned:
        assert ask(pays) == (Receipt, Receipt, ())
    said = (
        "The step 'charge' of pay runs without protection, and its result is handed on as it is. Protected, it raises"
    )
    for text in (str(warned[0].message), caplog.messages[0]):
        assert text.startswith(said)
        assert error in text
    assert (CALLS, caplog.records[0].levelname) == (["charge"], "ERROR")


# --- run_once


@pytest.fixture(params=["protected", "disabled"])
def enabled(request: pytest.FixtureRequest, settings: Any) -> bool:
    settings.IDEMPOTENCY = {**SWITCHES[request.param][0], "BACKENDS": {"events": MEMORY}}
    CALLS.clear()
    return bool(request.param == "protected")


def once(work: Callable[..., Any], **options: Any) -> Any:
    return run_once(work, **{"scope": "s", "key": "k", "operation": "pay", **options}).value


@pytest.mark.parametrize("options", [{}, {"lease": 60}, {"lease": 60, "backend": "events"}])
@pytest.mark.usefixtures("enabled")
def test_the_value_of_run_once_is_converted(options: dict[str, Any]) -> None:
    assert once(lambda *operation: {"amount": Decimal("1.10"), "parts": (1, 2)}, **options) == {
        "amount": "1.10",
        "parts": [1, 2],
    }


@pytest.mark.parametrize("options", [{}, {"lease": 60}])
def test_a_value_that_cannot_be_kept_is_an_error_or_is_handed_on(enabled: bool, options: dict[str, Any]) -> None:
    if enabled:
        with pytest.raises(ResultNotStorable):
            once(lambda *operation: Receipt(), **options)
    else:
        with pytest.warns(RuntimeWarning, match=r"^pay runs without protection, and its result is handed on as it is"):
            assert isinstance(once(lambda *operation: Receipt(), **options), Receipt)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"scope": ""}, IdempotencyConfigurationError),
        ({"key": "not a key"}, InvalidKey),
        ({"payload": object()}, IdempotencyConfigurationError),
    ],
)
@pytest.mark.usefixtures("enabled")
def test_an_argument_that_is_none_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        once(called("work"), **options)
    assert CALLS == []


@pytest.mark.parametrize("options", [{"lease": 60}, {"lease": 60, "backend": "events"}])
@pytest.mark.usefixtures("enabled")
def test_work_that_must_not_run_in_a_transaction_is_refused_there(options: dict[str, Any]) -> None:
    with (
        transaction.atomic(),
        pytest.raises(IdempotencyConfigurationError, match="was reached inside a transaction of database 'default'"),
    ):
        once(lambda operation: CALLS.append("work"), **options)
    assert CALLS == []
