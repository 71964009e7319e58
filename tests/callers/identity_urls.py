"""One view that tells a secret, behind the ways in which projects check a JSON Web Token (JWT)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path

from django_idempotency import idempotent
from tests.settings import REST_FRAMEWORK_INSTALLED
from tests.views import view_class

NINJA_INSTALLED = find_spec("ninja") is not None
RUNS: list[None] = []
API_KEY = "adas own key"
OPAQUE = "opaque-"
"""How tokens begin that say nothing to the package: `opaque-17-1`."""


class Stateless:
    """A user who is in no table."""

    is_authenticated, is_anonymous, is_active = True, False, True

    def __init__(self, pk: Any, token: Any = None) -> None:
        self.pk = pk
        if token is not None:
            self.token = token


class Directory:
    """A backend of LDAP, whose users have no rows."""

    def get_user(self, user_id: str) -> Any:
        return Stateless(user_id)


def jwt(signature: str = "signed", **claims: Any) -> str:
    """A token. The word `signed` stands for a good signature."""
    payload = urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJIUzI1NiJ9.{payload}.{signature}"


def checked(token: str) -> dict[str, Any] | None:
    """The claims of a token with a good signature, or what a table says about an opaque one."""
    if token.startswith(OPAQUE):
        return {"sub": token.split("-")[1]}
    head, _, signature = token.rpartition(".")
    if signature != "signed":
        return None
    payload = head.split(".")[1]
    claims: dict[str, Any] = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


def token_of(request: Any) -> str:
    """Where projects look for a token."""
    sent = [request.META.get("HTTP_AUTHORIZATION", ""), request.META.get("HTTP_X_ACCESS_TOKEN", "")]
    sent.append(request.COOKIES.get("access", ""))
    return next((value.split()[-1] for value in sent if value), "")


def send(path: str, *, session: Any = None, cookie: str | None = None, key: str = "k", **headers: str) -> Any:
    """Who ran, whether it was a replay; or the status of a refusal."""
    client = Client()
    if session is not None:
        client.force_login(session)
    if cookie is not None:
        client.cookies["access"] = cookie
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    response = client.post(path, {}, content_type="application/json", headers={"Idempotency-Key": key, **sent})
    return response.headers["Idempotency-Replayed"] if response.status_code == 200 else response.status_code


def user_for(claims: dict[str, Any], *, row: bool) -> Any:
    return User.objects.get(pk=claims["sub"]) if row else Stateless(claims["sub"])


def carrying(claims: dict[str, Any]) -> Any:
    """A user who is in no table, and carries the token, as Simple JWT's `TokenUser` does."""
    return Stateless(claims["sub"], SimpleNamespace(payload=claims))


def by_token(get_response: Any) -> Any:
    """A middleware that checks the token, and sets only the user."""

    def middleware(request: Any) -> Any:
        if request.path.startswith("/plain/") and (claims := checked(token_of(request))) and "bare" not in request.path:
            request.user = user_for(claims, row=request.path.endswith("/row"))
        return get_response(request)

    return middleware


def secret() -> dict[str, str]:
    RUNS.append(None)
    return {"secret": f"of run {len(RUNS)}"}


def tell(request: HttpRequest) -> JsonResponse:
    return JsonResponse(secret())


urlpatterns = [path(f"plain/{kind}", idempotent(tell)) for kind in ("row", "stranger", "bare")]

if REST_FRAMEWORK_INSTALLED:
    from rest_framework.authentication import BaseAuthentication, SessionAuthentication
    from rest_framework.views import APIView

    from django_idempotency.rest_framework import IdempotencyMixin

    class ApiKey(BaseAuthentication):
        def authenticate(self, request: Any) -> Any:
            known = request.headers.get("X-Api-Key") == API_KEY
            return (User.objects.get(username="ada"), None) if known else None

    def by_jwt(returned: Any) -> Any:
        """`returned(claims, token)` is what the authenticator returns."""

        def authenticate(self: Any, request: Any) -> Any:
            token = token_of(request)
            claims = checked(token)
            return None if claims is None else returned(claims, token)

        return type("Jwt", (BaseAuthentication,), {"authenticate": authenticate})

    def row(claims: Any) -> Any:
        return user_for(claims, row=True)

    def stranger(claims: Any) -> Any:
        return user_for(claims, row=False)

    JWTS = {
        "claims": by_jwt(lambda claims, token: (row(claims), claims)),
        "text": by_jwt(lambda claims, token: (row(claims), token)),
        "bytes": by_jwt(lambda claims, token: (row(claims), token.encode())),
        "object": by_jwt(lambda claims, token: (row(claims), SimpleNamespace(payload=claims))),
        "none": by_jwt(lambda claims, token: (row(claims), None)),
        "stranger-claims": by_jwt(lambda claims, token: (stranger(claims), claims)),
        "stranger-bytes": by_jwt(lambda claims, token: (stranger(claims), token.encode())),
        "stranger-token": by_jwt(lambda claims, token: (carrying(claims), None)),
        "stranger-none": by_jwt(lambda claims, token: (stranger(claims), None)),
        "alone-text": by_jwt(lambda claims, token: (AnonymousUser(), token)),
        "alone-bytes": by_jwt(lambda claims, token: (None, token.encode())),
        "alone-claims": by_jwt(lambda claims, token: (None, claims)),
    }
    for name, kind in JWTS.items():
        kinds = [SessionAuthentication, ApiKey, kind]
        view = view_class(IdempotencyMixin, APIView, post=tell, authentication_classes=kinds)
        urlpatterns.append(path(f"rest/{name}", view.as_view()))

if NINJA_INSTALLED:
    from ninja import NinjaAPI
    from ninja.security import APIKeyCookie, APIKeyHeader, HttpBearer, django_auth

    from django_idempotency.ninja import idempotent_operation

    def ninja_jwt(returned: Any, base: Any = HttpBearer, **attributes: Any) -> Any:
        def authenticate(self: Any, request: Any, token: Any) -> Any:
            claims = checked(token or "")
            return None if claims is None else returned(request, claims, token)

        made: Any = type("Jwt", (base,), {"authenticate": authenticate, **attributes})
        return made(csrf=False) if base is APIKeyCookie else made()

    class OwnKey(APIKeyHeader):
        param_name = "X-Api-Key"

        def authenticate(self, request: Any, key: str | None) -> Any:
            return User.objects.get(username="ada") if key == API_KEY else None

    def sets_user(request: Any, claims: Any, token: str) -> Any:
        request.user = user_for(claims, row=True)
        return token

    def sets_stranger(request: Any, claims: Any, token: str) -> Any:
        request.user = user_for(claims, row=False)
        return token

    def returns_row(request: Any, claims: Any, token: str) -> Any:
        return user_for(claims, row=True)

    NINJA = {
        "row": ninja_jwt(returns_row),
        "header": ninja_jwt(returns_row, APIKeyHeader, param_name="X-Access-Token"),
        "cookie": ninja_jwt(returns_row, APIKeyCookie, param_name="access"),
        "sets": ninja_jwt(sets_user),
        "sets-stranger": ninja_jwt(sets_stranger),
        "stranger": ninja_jwt(lambda request, claims, token: Stateless(claims["sub"])),
        "stranger-token": ninja_jwt(
            lambda request, claims, token: Stateless(claims["sub"], SimpleNamespace(payload=claims))
        ),
        "alone-text": ninja_jwt(lambda request, claims, token: token),
        "alone-claims": ninja_jwt(lambda request, claims, token: claims),
    }
    api = NinjaAPI(urls_namespace="identity", docs_url=None, openapi_url=None)
    for name, auth in NINJA.items():
        api.post(f"/{name}", auth=[auth, OwnKey(), django_auth], operation_id=name)(
            idempotent_operation(lambda request: secret())
        )
    urlpatterns.append(path("ninja/", api.urls))
