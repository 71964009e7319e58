"""What of a response is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_idempotency.models import IdempotencyKey

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.edge_urls")]


def test_a_cookie_set_by_hand_is_a_credential_too(post: Post) -> None:
    """A Set-Cookie header is neither stored nor replayed."""
    first, second = post("/raw_cookie"), post("/raw_cookie")
    assert first.headers["Set-Cookie"] == "secret=1; Path=/"
    assert second.headers["Idempotency-Replayed"] == "true"
    assert "Set-Cookie" not in second.headers
    assert "secret" not in (IdempotencyKey.objects.get().headers or "")


def test_a_cookie_set_by_hand_is_replayed_if_the_project_wants_it(post: Post, settings: Any) -> None:
    """STORE_COOKIES opts in."""
    settings.IDEMPOTENCY = {"STORE_COOKIES": True}
    post("/raw_cookie")
    assert post("/raw_cookie").cookies["secret"].OutputString() == "secret=1; Path=/"
