"""What the checks W020 and W021 find out about authenticators and decorators before the first request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Optional, Tuple  # noqa: UP035 (as in older projects)
from uuid import uuid4

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import idempotent
from django_idempotency.checks import check_urls
from tests.callers.identity_urls import NINJA_INSTALLED
from tests.settings import REST_FRAMEWORK_INSTALLED
from tests.views import answers, view_class

jwt = pytest.importorskip("jwt")
Found = list[tuple[str, str]]


@dataclass
class Stateless:
    pk: str
    is_authenticated: bool = True


@dataclass
class Carrying:
    pk: str
    token: Any
    is_authenticated: bool = True


class CarryingByHand:
    is_authenticated = True

    def __init__(self, token: Any) -> None:
        self.token = token


def claims(token: str) -> Any:
    return jwt.decode(token, "secret", ["HS256"])


def helps(token: str) -> Any:
    return claims(token)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Callable[..., Found]:
    """The ids and the messages for these routes."""

    def check(*urlpatterns: Any) -> Found:
        settings.ROOT_URLCONF = type("urls", (), {"urlpatterns": list(urlpatterns)})
        told = [(str(each.id).rpartition(".")[2], each.msg) for each in check_urls()]
        return [(id_, message) for id_, message in told if id_ in ("W020", "W021")]

    return check


# --- W020


def returns(annotation: Any, check: Callable[[str], Any] = helps) -> Any:
    """The function of an authenticator."""

    def authenticate(self: Any, request: Any, token: str = "") -> Any:
        return helps(token)

    def opaque(self: Any, request: Any, token: str = "") -> Any:
        return token

    chosen = authenticate if check is helps else opaque
    chosen.__annotations__["return"] = annotation
    return chosen


ALWAYS: dict[str, Any] = {"Stateless": Stateless, "Stateless | None": Stateless | None}
UNKNOWN: dict[str, Any] = {
    "a row": User,
    "nobody": AnonymousUser,
    "who carries the token": Carrying,
    "who is given the token": CarryingByHand | None,
    "anything": Any,
    "a name that nobody knows": "Unknown",
    "a text": str,
}


@pytest.mark.skipif(not NINJA_INSTALLED, reason="Django Ninja is not installed")
class TestNinja:
    def route(self, function: Any, **options: Any) -> Any:
        from ninja import NinjaAPI
        from ninja.security import HttpBearer

        from django_idempotency.ninja import idempotent_operation

        api = NinjaAPI(urls_namespace=str(uuid4()), docs_url=None, openapi_url=None)
        bearer: Any = type("Bearer", (HttpBearer,), {"authenticate": function})
        api.post("/pay", auth=bearer())(idempotent_operation(**options)(lambda request: {}))
        return path("", api.urls)

    @pytest.mark.parametrize("annotation", ALWAYS.values(), ids=ALWAYS)
    def test_a_user_in_no_table(self, found: Callable[..., Found], annotation: Any) -> None:
        """By the annotation of the authenticator's result."""
        ((id_, message),) = found(self.route(returns(annotation)))
        assert id_ == "W020"
        assert "Bearer checks a JWT and returns tests.callers.test_authenticators.Stateless, who is in no" in message

    @pytest.mark.parametrize("annotation", UNKNOWN.values(), ids=UNKNOWN)
    def test_other_results_are_not_judged(self, found: Callable[..., Found], annotation: Any) -> None:
        """Users in a table, users who carry the token, and what says nothing."""
        assert found(self.route(returns(annotation))) == []

    def test_an_opaque_token_is_not_concerned(self, found: Callable[..., Found]) -> None:
        """The authenticator names no library for JWTs."""
        assert found(self.route(returns(Stateless, check=str))) == []

    def test_a_scope_is_the_cure(self, found: Callable[..., Found]) -> None:
        """As the hint says."""
        assert found(self.route(returns(Stateless), scope=str)) == []

    def test_a_function_is_an_authenticator_too(self, found: Callable[..., Found]) -> None:
        """Whatever can be called with the request."""
        from ninja import NinjaAPI

        from django_idempotency.ninja import idempotent_operation

        def by_cookie(request: Any) -> Stateless | None:
            return Stateless(helps(request.COOKIES["access"])["sub"])

        api = NinjaAPI(urls_namespace="function", docs_url=None, openapi_url=None)
        api.post("/pay", auth=by_cookie)(idempotent_operation(lambda request: {}))
        assert [id_ for id_, _ in found(path("", api.urls))] == ["W020"]


@pytest.mark.skipif(not REST_FRAMEWORK_INSTALLED, reason="REST framework is not installed")
class TestRestFramework:
    def view(self, annotation: Any, **attributes: Any) -> Any:
        from rest_framework.authentication import BaseAuthentication
        from rest_framework.views import APIView

        from django_idempotency.rest_framework import IdempotencyMixin

        jwts: Any = type("Jwts", (BaseAuthentication,), {"authenticate": returns(annotation)})
        given = {"authentication_classes": [jwts]} | attributes
        return view_class(IdempotencyMixin, APIView, post=answers(), **given), jwts

    @pytest.mark.parametrize(
        "annotation",
        [tuple[Stateless, None], tuple[Stateless, None] | None, Optional[Tuple[Stateless, None]]],  # noqa: UP006, UP045
    )
    def test_a_user_in_no_table_and_no_token(self, found: Callable[..., Found], annotation: Any) -> None:
        """By the annotation of `authenticate`."""
        view, _ = self.view(annotation)
        ((id_, message),) = found(path("pay", view.as_view()))
        assert (id_, "Jwts checks a JWT" in message) == ("W020", True)

    @pytest.mark.parametrize("annotation", [tuple[Stateless, str], tuple[User, None], tuple[Carrying, None], tuple])
    def test_a_token_that_is_handed_on_is_the_cure(self, found: Callable[..., Found], annotation: Any) -> None:
        """As `request.auth`, or by the user; and a user in a table needs none."""
        view, _ = self.view(annotation)
        assert found(path("pay", view.as_view())) == []

    def test_what_as_view_is_given_counts(self, found: Callable[..., Found]) -> None:
        """In place of the class's own."""
        view, jwts = self.view(tuple[Stateless, None], authentication_classes=[])
        assert found(path("pay", view.as_view())) == []
        assert len(found(path("pay", view.as_view(authentication_classes=[jwts])))) == 1


# --- W021


def bearer(view: Any) -> Any:
    @wraps(view)
    def check(request: HttpRequest) -> HttpResponse:
        request.customer = helps(request.headers["Authorization"].split()[-1])["sub"]  # type: ignore[attr-defined]
        return view(request)  # type: ignore[no-any-return]

    return check


def bearer_with_user(view: Any) -> Any:
    @wraps(view)
    def check(request: HttpRequest) -> HttpResponse:
        request.user = User.objects.get(pk=helps(request.headers["Authorization"].split()[-1])["sub"])
        return view(request)  # type: ignore[no-any-return]

    return check


def order(request: HttpRequest) -> HttpResponse:
    return JsonResponse({}, status=201)


def checks_itself(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"for": jwt.decode(request.headers["Authorization"], "secret", ["HS256"])["sub"]})


def logs_in(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"token": jwt.encode({}, "secret", "HS256")})


def test_a_decorator_that_decodes_a_jwt_and_sets_no_user(found: Callable[..., Found]) -> None:
    """Above the protection, under others."""
    ((id_, message),) = found(path("pay", csrf_exempt(bearer(idempotent(order)))))
    assert id_ == "W021"
    assert "test_authenticators.order: tests.callers.test_authenticators.bearer decodes a JWT" in message


def test_a_view_that_decodes_a_jwt(found: Callable[..., Found]) -> None:
    """Itself."""
    assert [id_ for id_, _ in found(path("pay", idempotent(checks_itself)))] == ["W021"]


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(bearer_with_user(idempotent(order)), id="sets the user"),
        pytest.param(bearer(idempotent(scope=str)(order)), id="a scope"),
        pytest.param(idempotent(order), id="no token"),
        pytest.param(idempotent(logs_in), id="makes a token"),
        pytest.param(bearer(order), id="not protected"),
    ],
)
def test_others_are_not_judged(found: Callable[..., Found], view: Any) -> None:
    """Nobody becomes another caller by a renewed token, or nobody has one."""
    assert found(path("pay", view)) == []
