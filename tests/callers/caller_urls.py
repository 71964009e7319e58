"""One view that tells a secret, behind every way to say who is calling."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from importlib.util import find_spec
from typing import Any

from django.contrib.auth.models import AnonymousUser, Group, User
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.callers import HandedOn, scope_of
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


def jwt(client: str, claim: str = "azp") -> str:
    """A JWT. The signature is the business of whoever authenticates the user."""
    claims = urlsafe_b64encode(json.dumps({claim: client}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.c2ln"


def auth_scope(token: Any) -> str:
    """The scope of what an authenticator hands on without a user."""
    return scope_of(RequestFactory().post("/"), resolve(), lambda request: HandedOn(token=token))


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

    def by_key(found: Any) -> Any:
        """A header of its own, and no user, as API key packages have it. `found` makes `request.auth` of it."""

        def authenticate(self: Any, request: Any) -> Any:
            value = request.headers.get("X-Shop-Key")
            return None if value is None else (AnonymousUser(), found(value))

        return type("Key", (BaseAuthentication,), {"authenticate": authenticate})

    AUTHENTICATIONS = {
        "basic": BasicAuthentication,
        "session": SessionAuthentication,
        "token": TokenAuthentication,
        "key": by_key(str),
        "model": by_key(lambda value: Group.objects.get_or_create(name=value)[0]),
        "claims": by_key(lambda value: {"name": value}),  # claims without a subject
        # A user that is none of Django's.
        "nameless": type("Nameless", (BaseAuthentication,), {"authenticate": lambda self, request: (object(), None)}),
    }
    for name, kind in AUTHENTICATIONS.items():
        told = view_class(IdempotencyMixin, APIView, post=tell, authentication_classes=[kind])
        urlpatterns.append(path(f"rest/{name}", told.as_view()))

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
