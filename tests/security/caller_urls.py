"""One view that tells a secret, behind every way to say who is calling."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from importlib.util import find_spec
from typing import Any

from django.contrib.auth.middleware import RemoteUserMiddleware
from django.contrib.auth.models import AnonymousUser, Group, User
from django.http import HttpRequest, JsonResponse
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.keys import caller_scope
from tests.settings import REST_FRAMEWORK_INSTALLED
from tests.views import view_class

NINJA_INSTALLED = find_spec("ninja") is not None
RUNS: list[None] = []


def secret() -> dict[str, str]:
    RUNS.append(None)
    return {"secret": f"of run {len(RUNS)}"}


def tell(request: HttpRequest) -> JsonResponse:
    return JsonResponse(secret())


@idempotent
async def awaited(request: HttpRequest) -> JsonResponse:
    return JsonResponse(secret())


class ForwardedUserMiddleware(RemoteUserMiddleware):
    """As Django documents it for a proxy that authenticates."""

    header = "HTTP_X_FORWARDED_USER"


def awaited_user(get_response: Any) -> Any:
    """A middleware that sets no more than what Django's own asynchronous decorators ask for."""

    def middleware(request: Any) -> Any:
        async def auser() -> Any:
            return (await User.objects.aget_or_create(username=name))[0]

        if name := request.headers.get("X-Awaited-User"):
            request.auser = auser
        return get_response(request)

    return middleware


def jwt(client: str, claim: str = "azp") -> str:
    """A JWT. The signature is the business of whoever authenticates the user."""
    claims = urlsafe_b64encode(json.dumps({claim: client}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.c2ln"


def tenant_and_caller(request: HttpRequest) -> str:
    return f"acme:{caller_scope(request)}"


urlpatterns = [
    path("plain", idempotent(tell)),
    path("awaited", awaited),
    path("tenant", idempotent(scope=lambda request: request.GET["tenant"])(tell)),
]

if REST_FRAMEWORK_INSTALLED:
    from rest_framework.authentication import (
        BaseAuthentication,
        BasicAuthentication,
        SessionAuthentication,
        TokenAuthentication,
    )
    from rest_framework.views import APIView

    from django_idempotency.rest_framework import IdempotencyMixin

    class Key(BaseAuthentication):
        """A header of its own, and no user: what API key packages do."""

        def authenticate(self, request: Any) -> Any:
            value = request.headers.get("X-Shop-Key")
            return None if value is None else (AnonymousUser(), self.found(value))

        def found(self, value: str) -> Any:
            return value

    class ModelKey(Key):
        def found(self, value: str) -> Any:
            return Group.objects.get_or_create(name=value)[0]

    class Claims(Key):
        """Such as the payload of a JWT."""

        def found(self, value: str) -> Any:
            return {"sub": value}

    class Nameless(BaseAuthentication):
        """A user that is none of Django's."""

        def authenticate(self, request: Any) -> Any:
            return object(), None

    def behind(authentication: Any) -> Any:
        return view_class(IdempotencyMixin, APIView, post=tell, authentication_classes=[authentication]).as_view()

    urlpatterns += [
        path("rest/basic", behind(BasicAuthentication)),
        path("rest/session", behind(SessionAuthentication)),
        path("rest/token", behind(TokenAuthentication)),
        path("rest/key", behind(Key)),
        path("rest/model", behind(ModelKey)),
        path("rest/claims", behind(Claims)),
        path("rest/nameless", behind(Nameless)),
    ]

if NINJA_INSTALLED:
    from ninja import NinjaAPI
    from ninja.security import APIKeyHeader, HttpBearer, django_auth

    from django_idempotency.ninja import idempotent_operation

    class Bearer(HttpBearer):
        def authenticate(self, request: HttpRequest, token: str) -> str:
            return token

    class Member(HttpBearer):
        """It returns the token's user, and keeps the token nowhere."""

        def authenticate(self, request: HttpRequest, token: str) -> Any:
            return User.objects.get_or_create(username="ada")[0]

    class ShopKey(APIKeyHeader):
        param_name = "X-Shop-Key"

        def authenticate(self, request: HttpRequest, key: str | None) -> str | None:
            return key

    api = NinjaAPI(urls_namespace="callers", docs_url=None, openapi_url=None)

    for name, auth in {"bearer": Bearer(), "member": Member(), "key": ShopKey(), "session": django_auth}.items():
        api.post(f"/{name}", auth=auth, operation_id=name)(idempotent_operation(lambda request: secret()))
    urlpatterns.append(path("ninja/", api.urls))
