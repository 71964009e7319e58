"""The `idempotent` decorator in the REST framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rest_framework")
from django_idempotency import IdempotencyConfigurationError
from tests.http import replayed, same
from tests.rest_framework import api_urls
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.rest_framework.api_urls")]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    api_urls.CALLS.clear()
    yield
    api_urls.AFTER_ROLLBACK.clear()
    api_urls.OncePerTest.full = False


@pytest.mark.parametrize("path", ["/decorated/", "/function/"])
def test_the_decorator_on_handlers_and_below_api_view(post: Post, path: str) -> None:
    """Once, and replayed."""
    first, second = (post(path, {"amount": 1}) for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (201, "false", "true")
    assert same(first, second)
    assert Order.objects.count() == 1


def test_the_decorator_keeps_final_exceptions(post: Post) -> None:
    """As the mixin does."""
    first, second = (post("/function/", {"amount": -1}) for _ in range(2))
    assert (first.status_code, replayed(first), replayed(second)) == (400, "false", "true")


def test_protected_twice_is_refused(post: Post) -> None:
    """Two layers would wait for each other."""
    with pytest.raises(IdempotencyConfigurationError, match="protected twice"):
        post("/twice/")
