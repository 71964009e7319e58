"""What a request meets, in this order, before a view runs or its answer is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_idempotency import IdempotencyConfigurationError, get_operation
from django_idempotency.models import IdempotencyKey
from tests.factories import UserFactory
from tests.http import posting_to_a_view, replayed
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


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.integration.edge_urls")
def test_a_protected_view_that_calls_another_is_refused(post: Post) -> None:
    """It would meet its own claim; nothing of it stays."""
    with pytest.raises(IdempotencyConfigurationError, match="protected twice"):
        post("/outer")
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_a_key_of_the_projects_own_must_be_text() -> None:
    """`key=` is a callable(request) -> str or None. What a header may hold is in tests/unit/test_key_syntax.py."""
    with pytest.raises(IdempotencyConfigurationError, match="return a str or None"):
        posting_to_a_view(key=lambda request: 5)()
    assert posting_to_a_view(key=lambda request: "a b")().status_code == 400


def test_outside_of_a_protected_view_there_is_no_operation(rf: Any) -> None:
    """And the error of `get_operation` says how to get one."""
    with pytest.raises(IdempotencyConfigurationError, match="Protect the view with"):
        get_operation(rf.post("/"))
