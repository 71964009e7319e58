"""Who is calling. Attacks on other callers' keys are in tests/security/test_callers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from tests.factories import UserFactory
from tests.http import replayed
from tests.integration import view_urls
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]


def test_two_users_share_nothing(post: Post) -> None:
    """One key, two users: two orders, and neither sees the other's answer."""
    clients = []
    for name in ("ada", "bob"):
        client = Client()
        client.force_login(UserFactory(username=name))
        clients.append(client)
    answers = [post("/mine", client=client) for client in (*clients, *clients)]
    assert [a.json()["user"] for a in answers] == ["ada", "bob", "ada", "bob"]
    assert [replayed(a) for a in answers] == ["false", "false", "true", "true"]


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ({"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}, False),
        ({"Authorization": "Bearer a"}, {"Authorization": "bearer  a"}, True),
        ({"X-Api-Key": "a"}, {"X-Api-Key": "b"}, False),
        ({"Cookie": "sessionid=a"}, {"Cookie": "sessionid=b"}, False),
        ({"Cookie": "sessionid=a"}, {}, False),
        ({"X-Forwarded-For": "1.2.3.4"}, {"X-Forwarded-For": "5.6.7.8"}, True),
        ({}, {}, True),
    ],
)
def test_anonymous_callers_are_told_apart_by_their_credential(post: Post, one: Any, two: Any, same: bool) -> None:
    """Not by their address."""
    answers = [post("/create", headers=headers, client=Client()) for headers in (one, two)]
    assert [replayed(a) for a in answers] == ["false", "true" if same else "false"]


def test_callers_without_any_credential_can_be_refused(post: Post) -> None:
    """anonymous="refuse" answers 403 and runs nothing."""
    response = post("/known_callers")
    assert (response.status_code, response.json()["title"]) == (403, "Idempotency-Key needs an identified caller")
    assert post("/known_callers", headers={"X-Api-Key": "a"}).status_code == 200
    assert Order.objects.count() == 1


def test_the_project_can_name_the_scope(post: Post) -> None:
    """scope= is all that counts."""
    answers = [post("/tenant", headers={"X-Tenant": tenant}) for tenant in ("a", "b", "a")]
    assert [replayed(a) for a in answers] == ["false", "false", "true"]
    assert set(IdempotencyKey.objects.values_list("scope", flat=True)) == {"a", "b"}
    with pytest.raises(IdempotencyConfigurationError, match="return a non-empty str"):
        post("/tenant", headers={"X-Tenant": ""})


def test_a_user_without_primary_key_is_refused() -> None:
    """Nobody can tell such users apart."""
    request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    request.user = User()
    with pytest.raises(IdempotencyConfigurationError, match="no primary key"):
        view_urls.create(request)
