"""An operation with two authenticators: the same text from each is two callers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

pytest.importorskip("ninja")

from django.http import HttpRequest
from django.urls import path
from ninja import NinjaAPI
from ninja.security import APIKeyHeader, HttpBearer, django_auth

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from django_idempotency.ninja import idempotent_operation
from tests.factories import UserFactory
from tests.http import replayed
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.ninja.test_two_authenticators")]


class User(HttpBearer):
    """Returns the number of a user."""

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return token


class Partner(APIKeyHeader):
    """Returns the number of a partner."""

    param_name = "X-Partner"

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return key


def order() -> Any:
    """A function of its own for each route: routing leaves a mark on it."""

    def make(request: HttpRequest) -> Any:
        return {"id": Order.objects.create().pk}

    return make


def whose(request: Any) -> str:
    return f"partner:{request.auth}" if "X-Partner" in request.headers else f"user:{request.auth}"


api = NinjaAPI(urls_namespace="two", docs_url=None, openapi_url=None)
api.post("/two", auth=[django_auth, User(), Partner()], operation_id="two")(idempotent_operation(order()))
api.post("/text", auth=[django_auth, User()], operation_id="text")(idempotent_operation(order()))
api.post("/scoped", auth=[User(), Partner()], operation_id="scoped")(idempotent_operation(scope=whose)(order()))
urlpatterns = [path("", api.urls)]
USER, PARTNER = {"Authorization": "Bearer 17"}, {"X-Partner": "17"}


@pytest.mark.parametrize("headers", [USER, PARTNER])
def test_a_text_does_not_tell_which_authenticator_gave_it(client: Client, key: str, headers: dict[str, str]) -> None:
    """Refused before the operation runs, with the ways out. One caller would read the other's response."""
    with pytest.raises(IdempotencyConfigurationError) as refused:
        client.post("/two", headers={"Idempotency-Key": key, **headers})
    assert str(refused.value) == (
        "request.auth is a str, which does not tell which of the 2 authenticators of this operation gave it. Return a "
        "model instance from each authenticator, or pass scope=callable(request)."
    )
    assert not Order.objects.exists()


def test_a_model_instance_does(client: Client, key: str) -> None:
    """The class is a part of its scope."""
    user = UserFactory()
    client.force_login(user)
    answers = [client.post("/two", headers={"Idempotency-Key": key}) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == ["false", "true"]
    assert IdempotencyKey.objects.get().scope == f"user:auth.User:{user.pk}"


def test_a_text_beside_a_session_tells_who_gave_it(client: Client, key: str) -> None:
    """Django Ninja's own authenticators of sessions return a user, never a text."""
    answers = [client.post("/text", headers={"Idempotency-Key": key, **USER}) for _ in range(2)]
    client.force_login(UserFactory())
    answers.append(client.post("/text", headers={"Idempotency-Key": key}))
    assert [replayed(answer) for answer in answers] == ["false", "true", "false"]


def test_scope_tells_them_apart(client: Client, key: str) -> None:
    """One key, two callers: two orders."""
    answers = [client.post("/scoped", headers={"Idempotency-Key": key, **who}) for who in (USER, PARTNER, USER)]
    assert [replayed(answer) for answer in answers] == ["false", "false", "true"]
    assert set(IdempotencyKey.objects.values_list("scope", flat=True)) == {"user:17", "partner:17"}
