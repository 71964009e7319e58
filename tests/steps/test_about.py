"""What an operation knows about itself and is about: its key, its reference, its resource. In both modes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import override_settings
from django.urls import path
from django.utils import timezone

from django_idempotency import (
    IdempotencyConfigurationError,
    arun_once,
    get_operation,
    idempotent,
    once,
    run_once,
)
from django_idempotency.keys import derived_key, key_reference
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.heard import heard
from tests.http import replayed
from tests.leased_urls import HOOKS
from tests.leases import Broken, breaks, row
from tests.shopapp.models import Order

Post = Callable[..., Any]
LEASE = timedelta(minutes=2)
SEEN: list[Any] = []


def see(request: HttpRequest) -> HttpResponse:
    """What the test asks about the operation."""
    SEEN.append(HOOKS["view"](get_operation(request)))
    return JsonResponse({}, status=201)


async def asee(request: Any) -> HttpResponse:
    SEEN.append(await HOOKS["view"](request.idempotency))
    return JsonResponse({}, status=201)


def refuse(request: HttpRequest) -> HttpResponse:
    """A refusal that rolls its writes back, as the REST framework does."""
    get_operation(request).refer_to("order", "59")
    Order.objects.create()
    transaction.set_rollback(True)
    return JsonResponse({"detail": "sold out"}, status=422)


urlpatterns = [
    path("atomic", idempotent()(see)),
    path("leased", idempotent(lease=LEASE)(see)),
    path("atomic/optional", idempotent(required=False)(see)),
    path("leased/optional", idempotent(lease=LEASE, required=False)(see)),
    path("async/atomic", idempotent()(asee)),
    path("async/leased", idempotent(lease=LEASE)(asee)),
    path("refusing", idempotent(refuse)),
]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


@pytest.fixture(autouse=True)
def _clean() -> None:
    HOOKS.clear()
    SEEN.clear()


def seen(post: Post, where: str, view: Callable[[Any], Any], **kwargs: Any) -> Any:
    """What the view has seen, or the exception that it raised."""
    HOOKS["view"] = view
    assert post(where, **kwargs).status_code == 201
    return SEEN.pop()


class TestHandle:
    @pytest.mark.parametrize("where", ["/atomic", "/leased"])
    def test_it_knows_its_key_in_both_modes(self, post: Post, key: str, where: str) -> None:
        """The reference is what logs show, and the derived key is what the admin computes."""
        found = seen(
            post, where, lambda o: (o.scope, o.key, o.reference, o.attempt, o.derive_key("mail"), o.in_doubt, o.results)
        )
        of_step = derived_key(scope=row().scope, operation=row().operation, key=key, step="mail")
        assert found == (row().scope, key, key_reference(key), 1, of_step, (), {})
        IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
        assert seen(post, where, lambda operation: operation.attempt) == 2

    def test_the_namespace_enters_its_derived_keys(self, post: Post, key: str, settings: Any) -> None:
        """So two deployments that share a gateway account do not answer each other's calls."""
        settings.IDEMPOTENCY = {"NAMESPACE": "shop a"}
        found = seen(post, "/leased", lambda operation: operation.derive_key("mail"))
        of_step = {"scope": row().scope, "operation": row().operation, "key": key, "step": "mail"}
        assert found == derived_key(**of_step)
        settings.IDEMPOTENCY = {}
        assert found != derived_key(**of_step)

    @pytest.mark.parametrize("where", ["/atomic/optional", "/leased/optional"])
    @pytest.mark.parametrize("enabled", [True, False])
    def test_without_a_key_it_remembers_nothing(self, post: Post, settings: Any, where: str, enabled: bool) -> None:
        """The view runs as it is written. The rule is the same for both modes, and with ENABLED switched off."""
        settings.IDEMPOTENCY = {"ENABLED": enabled}

        def names_an_order(operation: Any) -> Any:
            operation.refer_to("order", 59)
            keys = [operation.derive_key(name) for name in ("a", "a", "b")]
            return operation.scope, operation.key, operation.reference, operation.resource, operation.results, keys

        first, second = (seen(post, where, names_an_order, key=None) for _ in range(2))
        assert first[:5] == (None, None, None, ("order", "59"), {})
        assert first[5][0] == first[5][1] != first[5][2]
        assert first[5] != second[5]
        assert IdempotencyKey.objects.count() == 0

    def test_a_name_is_checked_in_atomic_mode_too(self, post: Post) -> None:
        """It will be a step when the view becomes a leased one."""
        with pytest.raises(IdempotencyConfigurationError, match="is not a valid step name"):
            seen(post, "/atomic", lambda operation: operation.derive_key(""))


class TestReferTo:
    def test_a_refusal_that_rolls_back_keeps_it(self, post: Post) -> None:
        """The answer is stored under a second claim, with what the view has named."""
        first, second = (post("/refusing") for _ in range(2))
        assert (first.status_code, replayed(first), replayed(second)) == (422, "false", "true")
        assert (Order.objects.count(), row().resource_type, row().resource_id) == (0, "order", "59")

    @pytest.mark.parametrize("where", ["/atomic", "/leased"])
    def test_a_model_instance_is_kept_by_its_label_and_primary_key(self, post: Post, where: str) -> None:
        def refers(operation: Any) -> Any:
            order = Order.objects.create() if where == "/atomic" else operation.write("order", Order.objects.create)
            operation.refer_to(order)
            return operation.resource

        assert seen(post, where, refers) == ("shopapp.order", str(Order.objects.get().pk))
        assert (row().resource_type, row().resource_id) == ("shopapp.order", str(Order.objects.get().pk))

    @pytest.mark.parametrize("args", [("t" * 100, "59"), ("order", "x" * 255)])
    def test_the_longest_names_are_kept(self, post: Post, args: Any) -> None:
        seen(post, "/atomic", lambda operation: operation.refer_to(*args))
        assert (row().resource_type, row().resource_id) == args

    @pytest.mark.parametrize(
        "args",
        [
            *(("", "59"), ("t" * 101, "59"), ("an order", "59"), ("order\x00", "59"), (59,)),
            *(("order",), ("order", ""), ("order", "x" * 256), ("order", "5\n9"), ("order", True)),
            *((Order(),), (Order(pk=59), "59")),
        ],
    )
    def test_what_cannot_be_found_again_is_refused(self, post: Post, args: Any) -> None:
        """Before it is written, with what to do."""
        advice = r"refer_to\(.*\): pass a saved model instance alone, or a type of 1 to 100 characters without spaces"
        with pytest.raises(IdempotencyConfigurationError, match=advice):
            seen(post, "/atomic", lambda operation: operation.refer_to(*args))

    def test_in_leased_mode_it_is_rolled_back_with_its_write(self, post: Post) -> None:
        """Else the key would name an order that does not exist."""

        def place(operation: Any) -> None:
            operation.refer_to(Order.objects.create())
            breaks()

        def refers_to_a_cart(operation: Any) -> Any:
            operation.refer_to("cart", "1")
            try:
                operation.write("order", place, operation)
            except Broken:
                return operation.resource

        assert seen(post, "/leased", refers_to_a_cart) == ("cart", "1")
        assert (row().resource_type, row().resource_id) == ("cart", "1")

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("where", ["/atomic", "/leased"])
    def test_events_and_log_records_name_it(self, post: Post, caplog: pytest.LogCaptureFixture, where: str) -> None:
        """The outcome and each replay: `resource` of the signal, two fields of the record."""
        caplog.set_level(logging.INFO, "django_idempotency")
        with heard("completed", "replayed") as told:
            seen(post, where, lambda operation: operation.refer_to("shop.order", "59"))
            assert post(where).headers["Idempotency-Replayed"] == "true"
        assert [event["resource"] for event in told] == [("shop.order", "59")] * 2
        records = [vars(record) for record in caplog.records]
        fields = [(record["event"], record["resource_type"], record["resource_id"]) for record in records]
        assert fields == [("completed", "shop.order", "59"), ("replayed", "shop.order", "59")]
        assert caplog.messages[0].endswith(": completed, shop.order 59.")


class TestFetch:
    def test_a_retry_gets_what_was_read(self, post: Post) -> None:
        """And `function` is not called again. `results` shows it."""

        def reads_a_rate(operation: Any) -> Any:
            rate = operation.fetch("rate", dict if operation.attempt == 1 else breaks, [("euro", 1.5)], day=1)
            SEEN.append(operation.results)
            return rate if operation.attempt == 2 else breaks()

        with pytest.raises(Broken):
            seen(post, "/leased", reads_a_rate)
        assert seen(post, "/leased", reads_a_rate) == {"euro": 1.5, "day": 1}
        assert SEEN == [{"rate": {"euro": 1.5, "day": 1}}] * 2

    def test_one_that_fails_leaves_no_trace(self, post: Post) -> None:
        """It is never in doubt: the retry reads again."""
        with pytest.raises(Broken):
            seen(post, "/leased", lambda operation: operation.fetch("rate", breaks))
        assert IdempotencyStep.objects.count() == 0
        assert seen(post, "/leased", lambda operation: operation.fetch("rate", lambda: (1, 2))) == [1, 2]


@pytest.mark.django_db(transaction=True)
class TestAsync:
    def test_a_retry_gets_what_was_read(self, post: Post) -> None:
        async def reads_a_rate(operation: Any) -> Any:
            rate = await operation.afetch("rate", dict if operation.attempt == 1 else breaks, [("EUR", 1)], USD=2)
            return rate if operation.attempt == 2 else breaks()

        with pytest.raises(Broken):
            seen(post, "/async/leased", reads_a_rate)
        assert seen(post, "/async/leased", reads_a_rate) == {"EUR": 1, "USD": 2}

    def test_awrite_passes_all_arguments(self, post: Post) -> None:
        sums = seen(post, "/async/leased", lambda operation: operation.awrite("sums", dict, [("EUR", 1)], USD=2))
        assert sums == {"EUR": 1, "USD": 2}

    def test_an_atomic_view_refers_without_awaiting(self, post: Post) -> None:
        """No database is asked."""

        async def refers_twice(operation: Any) -> Any:
            operation.refer_to("order", "59")
            await operation.arefer_to("order", "60")

        seen(post, "/async/atomic", refers_twice)
        assert row().resource_id == "60"


def place(operation: Any) -> Any:
    operation.refer_to("order", "59")
    return [operation.key, operation.attempt]


def with_default(operation: str = "mine") -> str:
    return operation


async def aplace(operation: Any) -> Any:
    return place(operation)


@once(scope="shop", key=lambda event, *args, **kwargs: event)
def handle(event: str, operation: Any) -> Any:
    return operation if isinstance(operation, str) else place(operation)


class TestOnce:
    def test_work_that_asks_for_it_gets_the_operation(self) -> None:
        """By a required parameter of that name."""
        assert run_once(place, scope="s", key="k").value == ["k", 1]
        assert (row().operation, row().resource_id) == ("tests.steps.test_about.place", "59")

    def test_a_parameter_with_a_default_has_another_meaning(self) -> None:
        assert run_once(with_default, scope="s", key="k").value == "mine"

    def test_leased_work_gets_it_in_any_case(self) -> None:
        assert run_once(lambda anything: anything.key, scope="s", key="k", operation="o", lease=60).value == "k"

    def test_with_enabled_off_it_has_no_key(self) -> None:
        with override_settings(IDEMPOTENCY={"ENABLED": False}):
            assert run_once(place, scope="s", key="k").value == [None, 1]

    @pytest.mark.django_db(transaction=True)
    def test_asynchronous_work_is_asked_the_same(self) -> None:
        assert async_to_sync(arun_once)(aplace, scope="s", key="k").value == ["k", 1]

    def test_a_decorated_function_may_leave_it_to_the_caller(self) -> None:
        """What a caller gives is not replaced."""
        assert handle("e1") == ["e1", 1]
        assert handle("e2", operation="mine") == "mine"
        assert handle("e3", "mine") == "mine"
