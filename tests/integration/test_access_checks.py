"""Which decorators count as checks of who is calling. Those of other packages are in tests/security."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from django.contrib.auth.decorators import permission_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import Idempotency, IdempotencyConfigurationError, idempotent
from django_idempotency.checks import check_urls
from django_idempotency.views import IdempotencyMixin


def named(name: str) -> Callable[[Any], Any]:
    """A decorator of the project with this name. It refuses nothing."""

    def decorate(view: Any) -> Any:
        @wraps(view)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return view(*args, **kwargs)

        inner.__code__ = inner.__code__.replace(co_qualname=f"{name}.<locals>.inner")
        return inner

    return decorate


class TokenRequired:
    """A decorator that is a class."""

    def __init__(self, view: Any) -> None:
        self.__wrapped__ = view

    def __call__(self, request: HttpRequest) -> Any:
        return self.__wrapped__(request)


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ran")


CHECK = permission_required("shop.add_order")


@pytest.mark.parametrize(
    "name", ["otp_required", "group_required", "check_permission", "login_or_403", "jwt_auth", "authorized", "oauth"]
)
def test_a_decorator_that_says_it_checks_is_refused_below(name: str) -> None:
    """By its name, also under a decorator that does not check."""
    with pytest.raises(IdempotencyConfigurationError, match=rf"idempotent stands above {__name__}\.{name}, which"):
        idempotent(csrf_exempt(named(name)(view)))


def test_a_decorator_that_is_a_class_is_told_by_its_name() -> None:
    """Or by the package that defines it."""
    with pytest.raises(IdempotencyConfigurationError, match="TokenRequired"):
        idempotent(TokenRequired(view))


@pytest.mark.parametrize(
    "decorator",
    [csrf_exempt, never_cache, require_POST, transaction.atomic, named("traced"), named("author_of")],
)
def test_other_decorators_may_stand_below(decorator: Any) -> None:
    """They run once, like the view."""
    assert idempotent(decorator(view)).__name__ == "view"


def test_a_view_may_have_any_name() -> None:
    """It is not a decorator."""

    def login_required(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert idempotent(partial(login_required))
    assert idempotent(csrf_exempt(login_required)).__name__ == "login_required"


def handlers(**attributes: Any) -> Any:
    return type("Orders", (View,), {"post": lambda self, request: HttpResponse("ran"), **attributes})


class Own:
    def dispatch(self, request: HttpRequest) -> Any:
        return super().dispatch(request)  # type: ignore[misc]


class Answering(View):
    """Without handlers: the dispatch is the view."""

    def dispatch(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ran")


ON_DISPATCH = method_decorator(idempotent(required=False), name="dispatch")


@pytest.mark.parametrize(
    ("make", "below"),
    [
        (lambda: ON_DISPATCH(type("Orders", (Own, handlers()), {})), f"{__name__}.Own.dispatch"),
        (lambda: ON_DISPATCH(handlers(dispatch=Own.dispatch)), f"{__name__}.Own.dispatch"),
        (lambda: ON_DISPATCH(type("Orders", (Own, Answering), {})), f"{__name__}.Own.dispatch"),
        (lambda: ON_DISPATCH(handlers(patch=method_decorator(CHECK)(view))), "permission_required"),
        (lambda: ON_DISPATCH(handlers(patch=method_decorator(partial(CHECK))(view))), "permission_required"),
    ],
)
def test_a_dispatch_that_may_check_is_refused_below_the_decorator(rf: Any, make: Any, below: str) -> None:
    """Nothing is known of it, and a decorator on the handler is as good. The view does not run."""
    with pytest.raises(IdempotencyConfigurationError, match=below):
        make().as_view()(rf.post("/"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ON_DISPATCH(handlers()),
        lambda: ON_DISPATCH(method_decorator(never_cache, name="dispatch")(handlers())),
        lambda: ON_DISPATCH(Answering),
        lambda: ON_DISPATCH(type("Answers", (Answering,), {})),
        lambda: ON_DISPATCH(handlers(get=method_decorator(CHECK)(view))),
        lambda: type("Orders", (Own, ON_DISPATCH(handlers())), {}),
    ],
)
def test_a_dispatch_that_checks_nothing_may_stand_below(rf: Any, make: Any) -> None:
    """Also the check of a safe method, and any dispatch above the protected one."""
    assert make().as_view()(rf.post("/")).content == b"ran"


checked_post = method_decorator(CHECK)(lambda self, request: HttpResponse("ran"))
Mixed = type("Mixed", (IdempotencyMixin, View), {"post": checked_post})
Decorated = type("Decorated", (View,), {"post": method_decorator(idempotent)(checked_post)})
Right = type("Right", (View,), {"post": method_decorator(CHECK)(method_decorator(idempotent)(handlers().post))})
NotProtected = type("NotProtected", (Mixed,), {"idempotency": None})
OtherMethod = type("OtherMethod", (Mixed,), {"idempotency": Idempotency(methods={"PUT"})})
Impossible = type("Impossible", (Mixed,), {"idempotency": Idempotency(on_abandoned="hold")})
ROUTES = (Mixed, Decorated, Right, NotProtected, OtherMethod, handlers())
urlpatterns = [*(path(route.__name__, route.as_view()) for route in ROUTES), path("function", idempotent(view))]


@pytest.mark.urls(__name__)
def test_e006_finds_checked_handlers() -> None:
    """Below the mixin and below the decorator; not where nothing is protected."""
    messages = check_urls(None)
    assert [message.id for message in messages] == ["django_idempotency.E006"] * 2
    assert "IdempotencyMixin stands above django.contrib.auth.decorators.permission_required" in messages[0].msg
    assert "idempotent stands above django.contrib.auth.decorators.permission_required" in messages[1].msg


def test_a_method_that_is_not_protected_may_have_any_order(rf: Any) -> None:
    """Also with the mixin; the protected one is refused."""
    for make in (NotProtected, OtherMethod):
        request = rf.post("/")
        request.user = None
        with pytest.raises(AttributeError):  # of the check, which asks the user
            make.as_view()(request)
    with pytest.raises(IdempotencyConfigurationError, match="IdempotencyMixin stands above"):
        Mixed.as_view()(rf.post("/"))


def test_options_that_contradict_each_other_are_e007(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """And not an error of the check."""
    import sys
    import types

    views = types.ModuleType("views")
    views.urlpatterns = [path("", Impossible.as_view())]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "views_of_this_test", views)
    settings.ROOT_URLCONF = "views_of_this_test"
    assert [message.id for message in check_urls(None)] == ["django_idempotency.E007"]


class TestRestFramework:
    """The mixin of the REST framework, on viewsets too."""

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("rest_framework")

    def viewset(self, **attributes: Any) -> Any:
        from rest_framework.viewsets import ViewSet

        from django_idempotency.rest_framework import IdempotencyMixin

        return type("Orders", (IdempotencyMixin, ViewSet), {"create": checked_post, **attributes})

    def test_a_checked_action_is_refused(self, rf: Any) -> None:
        """Before the handler runs."""
        with pytest.raises(IdempotencyConfigurationError, match="permission_classes"):
            self.viewset().as_view({"post": "create"})(rf.post("/"))

    def test_a_method_that_is_not_protected_may_have_any_order(self, rf: Any) -> None:
        """The check runs, and asks the user."""
        viewset = self.viewset(idempotency={"methods": {"PUT"}}, authentication_classes=[])
        response = viewset.as_view({"post": "create"})(rf.post("/"))
        assert response.status_code == 302

    @pytest.mark.parametrize(("actions", "ids"), [({}, ["django_idempotency.E006"]), ({"create": None}, [])])
    def test_e006_looks_at_actions(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any, actions: Any, ids: list[str]
    ) -> None:
        """Unless the action is not protected."""
        import sys
        import types

        views = types.ModuleType("views")
        viewset = self.viewset(idempotency_actions=actions)
        views.urlpatterns = [path("", viewset.as_view({"post": "create"}))]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "views_of_this_test", views)
        settings.ROOT_URLCONF = "views_of_this_test"
        assert [message.id for message in check_urls(None)] == ids
