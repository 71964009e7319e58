"""What a request meets, in this order, before a view runs or its answer is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from tests.factories import UserFactory
from tests.http import replayed
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]


def test_a_replay_never_skips_the_login(post: Post) -> None:
    """Logged out, the retry is sent to the login page and not marked."""
    client = Client()
    client.force_login(UserFactory())
    post("/mine", client=client)
    client.logout()
    response = post("/mine", client=client)
    assert (response.status_code, replayed(response)) == (302, None)


def test_may_replay_is_asked(post: Post) -> None:
    """False answers 403."""
    client = Client()
    client.force_login(UserFactory())
    post("/mine", client=client)
    response = post("/mine", client=client, headers={"X-Denied": "1"})
    assert (response.status_code, response.json()["title"]) == (403, "Replay is not permitted")
    assert replayed(post("/mine", client=client)) == "true"


def test_without_a_key_the_view_runs_if_the_key_is_optional(post: Post) -> None:
    """And no header promises anything."""
    responses = [post("/optional", key=None) for _ in range(2)]
    assert [replayed(r) for r in responses] == [None, None]
    assert Order.objects.count() == 2


def test_other_methods_pass(client: Client, key: str) -> None:
    """No header, no row."""
    response = client.get("/handlers", headers={"Idempotency-Key": key})
    assert (response.status_code, replayed(response)) == (200, None)
    assert not IdempotencyKey.objects.exists()


def test_it_can_be_switched_off_in_a_test(post: Post, settings: Any) -> None:
    """ENABLED: False."""
    settings.IDEMPOTENCY = {"ENABLED": False}
    assert [replayed(post("/create")) for _ in range(2)] == [None, None]
    assert Order.objects.count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.integration.edge_urls")
def test_a_protected_view_that_calls_another_is_refused(post: Post) -> None:
    """It would meet its own claim; nothing of it stays."""
    with pytest.raises(IdempotencyConfigurationError, match="protected twice"):
        post("/outer")
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
