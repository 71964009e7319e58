"""The mixin for class-based views of plain Django, and how options on classes (class_options.py) fall through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import engines
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import CreateView

from django_idempotency import Idempotency, IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from django_idempotency.views import IdempotencyMixin
from tests.elsewhere import faulty_backend  # noqa: F401 (a fixture)
from tests.factories import UserFactory
from tests.http import replayed
from tests.leases import Broken, breaks
from tests.shopapp.models import Order
from tests.views import answers, creates, view_class

Post = Callable[..., Any]
VERBS = ("get", "post", "put", "patch")
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.django.test_views")]


class Create(LoginRequiredMixin, IdempotencyMixin, CreateView):
    model = Order
    fields = ["reference", "amount"]
    success_url = "/done/{id}"

    def render_to_response(self, context: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse(engines["django"].from_string("{{ form.errors }}").render(context))


def atomic(*args: Any) -> HttpResponse:
    return JsonResponse({"atomic": connection.in_atomic_block})


class Handlers(view_class(IdempotencyMixin, View, get=atomic, post=creates(then=atomic))):
    idempotency = {"ttl": 60}


class Narrower(Handlers):
    idempotency = Idempotency(store_body=False)


class Unprotected(Handlers):
    idempotency = None


class Again(Unprotected):
    """Its layers end at the None of its base."""

    idempotency = Idempotency()


class ByRequest(Handlers):
    def get_idempotency_options(self) -> Any:
        assert self.request.method != "GET"
        return None if "off" in self.request.GET else {"methods": ("PUT",)}


urlpatterns = [
    path("create", Create.as_view()),
    # The access mixin's dispatch still comes before the protected handler.
    path("first", view_class(IdempotencyMixin, LoginRequiredMixin, View, post=creates(200)).as_view()),
    path("handlers", Handlers.as_view()),
    path("as_view", Handlers.as_view(idempotency={"required": False})),
    path("narrower", Narrower.as_view()),
    path("unprotected", Unprotected.as_view()),
    path("again", Again.as_view()),
    path("by_request", ByRequest.as_view()),
]


@pytest.mark.parametrize("path", ["/create", "/first"])
def test_the_login_comes_first(path: str, client: Client, post: Post) -> None:
    """On either side of the access mixin: no key is burned, and a replay does not skip it."""
    assert (post(path).status_code, IdempotencyKey.objects.exists()) == (302, False)
    client.force_login(UserFactory())
    assert [replayed(post(path)) for _ in range(2)] == ["false", "true"]
    client.logout()
    response = post(path)
    assert (response.status_code, replayed(response), response["Location"][:10]) == (302, None, "/accounts/")


@pytest.mark.parametrize(
    ("path", "marks", "ttl", "body"),
    [
        ("/handlers", ["false", "true"], 60, True),
        ("/as_view", ["false", "true"], 60, True),
        ("/narrower", ["false", "false"], 60, False),
        ("/again", ["false", "true"], 86_400, True),
    ],
)
def test_options_fall_through(post: Post, path: str, marks: list[str], ttl: int, body: bool) -> None:
    """as_view(), class, base class; up to a None."""
    assert [replayed(post(path)) for _ in range(2)] == marks
    row = IdempotencyKey.objects.get()
    assert round((row.expires_at - row.created_at).total_seconds()) == ttl
    assert (row.body is not None) == body


def test_a_safe_method_is_not_asked_about(client: Client) -> None:
    """`get_idempotency_options()` may rely on that."""
    assert client.get("/by_request").status_code == 200


@pytest.mark.django_db(transaction=True)
class TestTransactions:
    @pytest.mark.usefixtures("atomic_requests")
    def test_unprotected_requests_keep_djangos_transaction(self, client: Client, post: Post) -> None:
        """A safe method, an unprotected class, an unprotected request and another method."""
        assert client.get("/handlers").json() == {"atomic": True}
        for url in ("/unprotected", "/by_request?off", "/by_request"):
            assert post(url).json()["atomic"] is True


HALF: dict[str, Any] = {
    "fixed": {"idempotency": {"using": "other"}},
    "by_request": {"get_idempotency_options": lambda self: Idempotency(using="other")},
    "by_action": {"idempotency_actions": {"post": {"using": "other"}}},
    "elsewhere": {"idempotency_actions": {"post": {"backend": "events", "lease": 30}}},
}


async def afails(request: HttpRequest) -> HttpResponse:
    await Order.objects.acreate()
    raise Broken


urlpatterns += [
    path(f"half/{name}/{kind}", view_class(IdempotencyMixin, View, post=fails, **options).as_view())
    for name, options in HALF.items()
    for kind, fails in (("def", creates(then=breaks)), ("async", afails))
]


@pytest.mark.usefixtures("atomic_requests", "backend")
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
@pytest.mark.parametrize("kind", ["def", "async"])
@pytest.mark.parametrize("name", HALF)
def test_without_its_keys_a_database_keeps_djangos_transaction(name: str, kind: str, post: Post) -> None:
    """Whichever layer of options says that they are elsewhere. A backend's are refused in it."""
    if (name, kind) == ("fixed", "async"):
        pytest.skip("Django refuses an async view under ATOMIC_REQUESTS")
    for _ in range(2):
        with pytest.raises(IdempotencyConfigurationError if name == "elsewhere" else Broken):
            post(f"/half/{name}/{kind}")
    assert not Order.objects.exists()


urlpatterns += [
    path(
        "completed",
        view_class(
            IdempotencyMixin,
            View,
            get=answers(),
            post=answers(),
            idempotency={"on_abandoned": "hold"},
            idempotency_actions={"post": {"lease": 60}},
        ).as_view(),
    )
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", ["get", "post"])
def test_options_of_a_class_may_need_those_of_a_handler(method: str, client: Client, key: str) -> None:
    """The class alone, whose options are impossible, is only asked where its keys are."""
    assert getattr(client, method)("/completed", headers={"Idempotency-Key": key}).status_code == 200


class Overriding:
    """Goes below the mixin. A browser's form, for example, can only send POST."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        request.method = request.GET.get("_method", request.method)
        response: HttpResponse = super().dispatch(request, *args, **kwargs)  # type: ignore[misc]
        if "fail" in request.GET:
            raise Broken
        return response


class Calling(view_class(IdempotencyMixin, View, post=creates())):
    def put(self, request: HttpRequest) -> Any:
        return self.post(request)

    get = put

    def get_idempotency_options(self) -> Any:
        assert self.request.method != "GET"
        return {"methods": ("POST", "PUT")}


def savepoints(*args: Any) -> HttpResponse:
    return JsonResponse({"atomic": connection.in_atomic_block, "savepoints": len(connection.savepoint_ids)})


Overridden = view_class(IdempotencyMixin, Overriding, View, **dict.fromkeys(VERBS, creates(then=savepoints)))


def overridden(**options: Any) -> Any:
    return type("Orders", (Overridden,), options).as_view()


nested = overridden(idempotency=None)
urlpatterns += [
    path("calling", Calling.as_view()),
    path("overridden", overridden()),
    path("overridden/optional", overridden(idempotency={"required": False})),
    path("overridden/above", view_class(Overriding, IdempotencyMixin, View, put=creates(then=savepoints)).as_view()),
    path("overridden/off", overridden(idempotency_actions={"post": None})),
    path(
        "overridden/nested",
        view_class(IdempotencyMixin, Overriding, View, put=lambda request: nested(request)).as_view(),
    ),
]


def test_a_method_that_is_changed_below_the_mixin_is_protected(post: Post) -> None:
    """Whichever handler dispatch() picks."""
    assert [replayed(post("/overridden?_method=PATCH")) for _ in range(2)] == ["false", "true"]
    assert Order.objects.count() == 1


@pytest.mark.parametrize(("method", "mark"), [("put", "false"), ("get", None)])
def test_a_handler_that_calls_another_one_runs_it_bare(method: str, mark: str | None, client: Client, key: str) -> None:
    """It is protected once, and not at all for a safe method."""
    response = getattr(client, method)("/calling", headers={"Idempotency-Key": key})
    assert (response.status_code, replayed(response)) == (201, mark)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize(
    ("method", "path", "enabled"),
    [
        ("get", "/overridden", True),
        ("put", "/overridden", True),
        ("post", "/overridden", False),
        ("post", "/overridden/optional", True),
        ("post", "/overridden/off", True),
        ("put", "/overridden/above", True),
        ("put", "/overridden/nested", True),
    ],
)
def test_every_dispatch_of_an_unprotected_request_is_in_djangos_transaction(
    method: str, path: str, enabled: bool, client: Client, settings: Any
) -> None:
    """What runs after the handler, too; and there is one transaction, without a savepoint."""
    settings.IDEMPOTENCY = {"ENABLED": enabled}
    send = getattr(client, method)
    assert send(path).json() == {"atomic": True, "savepoints": 0}
    Order.objects.all().delete()
    with pytest.raises(Broken):
        send(f"{path}?fail")
    assert not Order.objects.exists()


class TestRefusals:
    def test_after_the_view_class(self) -> None:
        """A TypeError when the class is made, with the right order."""
        with pytest.raises(TypeError, match=r"class Wrong\(…, IdempotencyMixin, …, View\)"):
            type("Wrong", (View, IdempotencyMixin), {})

    def test_behind_a_dispatch_that_calls_no_other(self) -> None:
        """As in a view class of another package: the mixin's dispatch would never run, and each retry would."""

        class Answering(View):
            def dispatch(self, request: HttpRequest) -> HttpResponse:
                return self.post(request)

        with pytest.raises(TypeError, match=r"class Wrong\(…, IdempotencyMixin, …, Answering\)"):
            type("Wrong", (Answering, Handlers), {})
        type("Right", (Handlers, Answering), {})

    def test_a_dispatch_that_calls_the_next_one_may_come_first(self) -> None:
        """By super(), by name, or in a function of its own."""

        class Auditing(View):
            def dispatch(self, *args: Any) -> Any:
                return self.audited(lambda: super(Auditing, self).dispatch(*args))

            def audited(self, send: Callable[[], Any]) -> Any:
                return send()

        class Named(Auditing):
            def dispatch(self, *args: Any) -> Any:
                return Auditing.dispatch(self, *args)

        view_class(Named, Handlers)

    def test_a_view_that_answers_by_itself(self) -> None:
        """A GraphQL library's: there is no handler to wrap."""
        wrong = type("Wrong", (IdempotencyMixin, View), {"dispatch": lambda self, request: HttpResponse()})
        with pytest.raises(IdempotencyConfigurationError, match="Wrong has no handlers for the mixin to protect"):
            wrong.as_view()

    def test_impossible_options(self) -> None:
        """When the class or the view is made."""
        with pytest.raises(IdempotencyConfigurationError, match="Did you mean 'ttl'"):
            type("Wrong", (IdempotencyMixin, View), {"idempotency": {"tll": 1}})
        with pytest.raises(IdempotencyConfigurationError, match="ttl=0"):
            type("Wrong", (IdempotencyMixin, View), {"idempotency_actions": {"post": {"ttl": 0}}})
        with pytest.raises(IdempotencyConfigurationError, match="ttl=0"):
            Handlers.as_view(idempotency={"ttl": 0})
        with pytest.raises(IdempotencyConfigurationError, match="ttl=0"):
            Handlers.as_view(idempotency_actions={"post": {"ttl": 0}})


def test_what_decorators_have_set_on_dispatch_stays(rf: Any) -> None:
    """Django's middleware reads it from the view: here the one for CSRF, and the one that asks for a login."""

    @method_decorator([csrf_exempt, login_not_required], name="dispatch")
    class Open(view_class(post=answers())):
        pass

    class Protected(IdempotencyMixin, Open):
        pass

    class Own(Protected):
        def dispatch(self, request: HttpRequest) -> Any:
            return super().dispatch(request)

    view: Any = Protected.as_view()
    assert (view.csrf_exempt, view.login_required) == (True, False)
    assert not hasattr(Own.as_view(), "csrf_exempt")  # as in Django: this dispatch has no decorators
