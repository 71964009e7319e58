"""The mixin of the REST framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.core.checks import Error
from django.db import connections
from django.test import Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator

pytest.importorskip("rest_framework")

from rest_framework import renderers
from rest_framework.decorators import api_view
from rest_framework.exceptions import ValidationError
from rest_framework.generics import CreateAPIView
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency import Idempotency, IdempotencyConfigurationError, idempotent
from django_idempotency.checks import check_urls
from django_idempotency.models import IdempotencyKey
from django_idempotency.rest_framework import IdempotencyMixin
from tests.frameworks.rest_framework import api_urls
from tests.http import replayed
from tests.leases import Broken
from tests.shopapp.models import Order
from tests.views import answers, creates, view_class

Post = Callable[..., Any]
VERBS = ("post", "patch")
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.rest_framework.test_mixins")]


class CountingPage(renderers.BrowsableAPIRenderer):
    """It asks the database after the exception handler has marked the rollback."""

    def render(self, *args: Any, **kwargs: Any) -> Any:
        Order.objects.count()
        return super().render(*args, **kwargs)


def refuses(request: Any, order: Order) -> Response:
    raise ValidationError("no")


browsable = view_class(IdempotencyMixin, APIView, post=creates(then=refuses), renderer_classes=[CountingPage])


class Overriding(APIView):
    """Takes the method from a header, and fails when the handler has run."""

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        request.method = request.headers.get("X-HTTP-Method-Override", request.method)
        return super().initialize_request(request, *args, **kwargs)

    def finalize_response(self, *args: Any, **kwargs: Any) -> Any:
        if "X-Fail" in self.request.headers:
            raise Broken
        return super().finalize_response(*args, **kwargs)


class Unprotected(IdempotencyMixin, Overriding, ViewSet):
    idempotency_actions = {"place": None}

    def place(self, request: Any) -> Response:
        return Response(Order.objects.create().pk)


overriding = view_class(IdempotencyMixin, Overriding, post=creates(), put=creates(), patch=creates())
urlpatterns = [
    *api_urls.urlpatterns,
    path("overriding/", overriding.as_view()),
    path("action/", Unprotected.as_view({"post": "place"})),
    path("counting/", type("Elsewhere", (browsable,), {"idempotency": {"using": "other"}}).as_view()),
    path("browsable/", browsable.as_view()),
]


def never_called(self: Any, request: Any) -> Response:
    raise AssertionError("the view ran")


def lowered(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """A middleware that sets the method in lower case."""

    def middleware(request: Any) -> Any:
        request.method = request.method.lower()
        return get_response(request)

    return middleware


def test_a_method_in_lower_case_is_protected(post: Post, settings: Any) -> None:
    """The framework's dispatch takes any case."""
    settings.MIDDLEWARE = ["tests.frameworks.rest_framework.test_mixins.lowered"]
    first, second = (post("/orders/", {"reference": "r", "amount": 1}) for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (201, "false", "true")


def test_a_view_that_decides_by_request_is_judged_on_that_request(rf: Any, key: str) -> None:
    """Whether it protects a method is not known before. A middleware may have set the method in lower case."""

    class Orders(IdempotencyMixin, APIView):
        idempotency = None

        post = method_decorator(login_required)(never_called)

        def get_idempotency_options(self) -> Any:
            return {}

    request = rf.post("/", headers={"Idempotency-Key": key})
    request.method = "post"
    with pytest.raises(IdempotencyConfigurationError, match="IdempotencyMixin sits above"):
        Orders.as_view()(request)


@pytest.mark.parametrize(("path", "marks"), [("optional", ["false", "true"]), ("preview", [None, None])])
def test_actions_have_options_of_their_own(post: Post, path: str, marks: list[Any]) -> None:
    """A dict, or None for an unprotected action. An `Idempotency` is below."""
    assert [replayed(post(f"/orders/{path}/")) for _ in range(2)] == marks


def test_action_options_fall_through_to_the_class(post: Post) -> None:
    """The action decides store_body, the class the ttl."""
    post("/orders/secret/")
    row = IdempotencyKey.objects.get()
    assert row.body is None
    assert abs((row.expires_at - row.created_at).total_seconds() - 3600) < 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("patch", "/orders/{}/", 200),
        ("get", "/orders/", 200),
        ("options", "/orders/", 200),
        ("get", "/dynamic/", 405),
    ],
)
def test_what_is_not_protected_passes(client: Client, key: str, method: str, path: str, status: int) -> None:
    """An action with None, other methods, and 405: no header where no key was honoured."""
    call = getattr(client, method)
    response = call(path.format(Order.objects.create().pk), headers={"Idempotency-Key": key})
    assert (response.status_code, replayed(response)) == (status, None)


def test_options_can_depend_on_the_request(post: Post) -> None:
    """get_idempotency_options() is asked each time; None leaves the request alone."""
    assert post("/dynamic/", key=None).status_code == 400
    assert replayed(post("/dynamic/?off")) is None
    assert replayed(post("/dynamic/?optional", key=None)) is None
    assert [replayed(post("/dynamic/?optional")) for _ in range(2)] == ["false", "true"]


class TestRefusals:
    def test_the_mixin_without_the_frameworks_dispatch_below(self) -> None:
        """A TypeError when the class is made, with the right order."""
        with pytest.raises(TypeError, match=r"class Wrong\(…, IdempotencyMixin, …, APIView\)"):
            type("Wrong", (APIView, IdempotencyMixin), {})

    @pytest.mark.parametrize(
        ("view", "message"),
        [
            (api_view(["POST"])(lambda request: Response()), r'@api_view\(\["POST"\]\)\n    @idempotent'),
            (api_urls.Decorated.as_view(), "above the authentication of the REST framework view"),
            (partial(api_urls.Decorated.as_view(), x=1), "above the authentication of the REST framework view"),
        ],
    )
    def test_the_decorator_above_the_framework(self, view: Any, message: str) -> None:
        """Refused at decoration, with the right order."""
        with pytest.raises(IdempotencyConfigurationError, match=message):
            idempotent(view)

    def test_the_decorator_on_dispatch(self, rf: Any) -> None:
        """Refused on the first request, before the view runs."""

        wrong = method_decorator(idempotent, name="dispatch")(type("Wrong", (APIView,), {"post": never_called}))
        with pytest.raises(
            IdempotencyConfigurationError, match="dispatch of Wrong above the authentication of the REST framework"
        ):
            wrong.as_view()(rf.post("/", headers={"Idempotency-Key": "k"}))


def test_options_of_a_request_may_change_those_of_the_class(rf: Any, key: str, settings: Any) -> None:
    """The project's defaults are applied to what comes out: here to a lease that only this request has."""
    settings.IDEMPOTENCY = {"ON_ABANDONED": "hold"}

    class Payments(view_class(IdempotencyMixin, APIView, post=answers())):
        idempotency = Idempotency(ttl=600)

        def get_idempotency_options(self) -> Any:
            return replace(super().get_idempotency_options(), lease=60)

    assert replayed(Payments.as_view()(rf.post("/", headers={"Idempotency-Key": key}))) == "false"
    row = IdempotencyKey.objects.get()
    assert (row.policy, (row.expires_at - row.created_at).total_seconds() < 700) == ("hold", True)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"idempotency_actions": {"create": None, "craete": None}},
            ".idempotency_actions names 'craete', but the class has no such method. Correct the name.",
        ),
        (
            {"idempotency_options": {"ttl": 60}},
            " has the attribute idempotency_options, which has no effect. Name it idempotency.",
        ),
    ],
)
def test_e012_a_name_that_nothing_reads(attributes: Any, message: str) -> None:
    """An error, with the name to correct."""
    wrong: Any = type("Wrong", (IdempotencyMixin, ViewSet), {"create": lambda self, request: None, **attributes})
    urls: Any = ModuleType("urls_of_this_test")
    urls.urlpatterns = [path("orders", wrong.as_view({"post": "create"}))]
    with override_settings(ROOT_URLCONF=urls):
        assert [*check_urls()] == [Error(f"{__name__}.Wrong{message}", id="django_idempotency.E012")]


def checked(*routes: Any) -> list[tuple[str, str]]:
    urls: Any = ModuleType("urls_of_this_test")
    urls.urlpatterns = routes
    with override_settings(ROOT_URLCONF=urls):
        return [(message.id.removeprefix("django_idempotency."), message.msg) for message in check_urls()]


def test_e012_a_generic_view_is_asked_for_its_verb() -> None:
    """Its handler is `post`, so the options of `create` would have no effect."""
    calls = {"create": lambda self, request: None}
    named = {name: {"idempotency_actions": {name: {"required": False}}, **calls} for name in ("post", "create")}
    views = [type(name.title(), (IdempotencyMixin, CreateAPIView), attributes) for name, attributes in named.items()]
    told = ".idempotency_actions names 'create', which nothing reads: name the handler, such as 'post'."
    assert checked(*(path(view.__name__, view.as_view()) for view in views)) == [("E012", f"{__name__}.Create{told}")]


def test_e017_options_that_apply_to_no_method() -> None:
    """Those of an action and of a class. A class may inherit them, and use them for one of its actions only."""
    Payments = type("Payments", (IdempotencyMixin, ViewSet), {"update": never_called, "create": never_called})
    Updating = type("Updating", (Payments,), {"idempotency": {"ttl": 60}})
    ByAction = type("ByAction", (Payments,), {"idempotency_actions": {"update": {"ttl": 60}}})
    routes = [
        path(f"{number}", view.as_view(actions))
        for number, (view, actions) in enumerate(
            [
                (Payments, {"put": "update"}),
                (Updating, {"put": "update"}),
                (ByAction, {"put": "update", "post": "create"}),
            ]
        )
    ]
    told = "answers PUT, but its options protect PATCH, POST: each retry runs again. Pass methods=('PUT',), or remove"
    assert checked(*routes) == [
        ("E017", f"{__name__}.ByAction.update {told} the options."),
        ("E017", f"{__name__}.Updating {told} the options."),
    ]
    assert checked(*routes, path("create", Updating.as_view({"post": "create"}))) == [
        ("E017", f"{__name__}.ByAction.update {told} the options."),
    ]


def test_w018_an_operation_of_several_actions() -> None:
    """A refund would be answered with the payment's response. One action may have several routes."""
    Payments = type(
        "Payments",
        (IdempotencyMixin, ViewSet),
        {"pay": never_called, "refund": never_called, "idempotency": {"operation": "pay a basket"}},
    )
    pay, refund = (Payments.as_view({"post": name}) for name in ("pay", "refund"))
    assert checked(path("pay", pay), path("en/pay", pay)) == []
    assert checked(path("pay", pay), path("refund", refund)) == [
        (
            "W018",
            f"operation='pay a basket' belongs to {__name__}.Payments.pay and {__name__}.Payments.refund. A key "
            "that one of them has used is answered by the others with its response, if the bodies and the URLs' "
            "arguments are equal.",
        )
    ]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("atomic_requests")
def test_a_final_exception_is_kept_under_atomic_requests(post: Post) -> None:
    """The framework's set_rollback() and a renderer that reads the database do no harm."""
    first, second = (post("/browsable/") for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (400, "false", "true")
    assert not Order.objects.exists()


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
@pytest.mark.usefixtures("atomic_requests")
def test_a_renderer_may_query_the_databases_that_the_framework_rolls_back(post: Post, monkeypatch: Any) -> None:
    """set_rollback() marks Django's own transaction on `default`, too. It is rolled back none the less."""
    monkeypatch.setitem(connections["other"].settings_dict, "ATOMIC_REQUESTS", True)
    first, second = (post("/counting/") for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (400, "false", "true")
    assert not Order.objects.exists()


def test_a_method_that_the_framework_reads_from_a_header_is_protected(post: Post) -> None:
    """Whichever handler dispatch() picks."""
    sent = [post("/overriding/", headers={"X-HTTP-Method-Override": "PATCH"}) for _ in range(2)]
    assert [replayed(response) for response in sent] == ["false", "true"]
    assert Order.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize(("method", "path"), [("put", "/overriding/"), ("post", "/action/")])
def test_an_unprotected_request_is_finalized_in_djangos_transaction(client: Client, method: str, path: str) -> None:
    """Its order is gone if that fails."""
    send = getattr(client, method)
    assert send(path).status_code in (200, 201)
    Order.objects.all().delete()
    with pytest.raises(Broken):
        send(path, headers={"X-Fail": "1"})
    assert not Order.objects.exists()
