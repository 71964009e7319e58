"""What a request meets, in this order, before a view runs or its answer is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_idempotency import IdempotencyConfigurationError, get_operation, idempotent
from django_idempotency.models import IdempotencyKey
from tests.http import posting_to_a_view, problem
from tests.integration import view_urls
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]


def test_callers_without_any_credential_can_be_refused(post: Post) -> None:
    """anonymous="refuse" answers 403 and runs nothing."""
    assert problem(post("/known_callers"))["title"] == "Idempotency-Key needs an identified caller"
    assert post("/known_callers", headers={"X-Api-Key": "a"}).status_code == 200
    assert Order.objects.count() == 1


def test_the_projects_scope_must_be_text() -> None:
    with pytest.raises(IdempotencyConfigurationError, match="return a non-empty str"):
        posting_to_a_view(scope=lambda request: "")()


@pytest.mark.django_db(transaction=True)
def test_a_protected_view_that_calls_another_is_refused(rf: RequestFactory) -> None:
    """It would meet its own claim; nothing of it stays."""

    @idempotent
    def outer(request: HttpRequest) -> HttpResponse:
        Order.objects.create()
        return view_urls.create(request)

    with pytest.raises(IdempotencyConfigurationError, match="protected twice"):
        outer(rf.post("/", headers={"Idempotency-Key": "k"}))
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
