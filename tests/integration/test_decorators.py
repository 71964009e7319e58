"""The `idempotent` decorator: what it can stand on, in each framework, and how it takes its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import Idempotency, IdempotencyConfigurationError, idempotent
from tests.http import replayed
from tests.integration.placement_urls import view
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.view_urls")]


def test_a_handler_named_put_protects_put(client: Client, key: str) -> None:
    """Whoever decorates it wants that."""
    responses = [client.put("/handlers", headers={"Idempotency-Key": key}) for _ in range(2)]
    assert [replayed(r) for r in responses] == ["false", "true"]


class Both(View):
    @method_decorator(idempotent(methods=("POST", "PATCH")))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(Order.objects.create().pk))

    patch = post


class Calling(Both):
    def patch(self, request: HttpRequest) -> HttpResponse:
        return self.post(request)


@pytest.mark.parametrize("view_class", [Both, Calling])
def test_a_handler_named_post_protects_the_methods_that_are_named(rf: Any, key: str, view_class: type[View]) -> None:
    """Also under another name, or called by another handler."""
    answers = [view_class.as_view()(rf.patch("/", headers={"Idempotency-Key": key})) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == ["false", "true"]


def test_options_are_given_by_keyword_or_as_one_value() -> None:
    """Not both."""
    with pytest.raises(IdempotencyConfigurationError, match="not both"):
        idempotent(Idempotency(ttl=1), wait=1)
    with pytest.raises(IdempotencyConfigurationError, match="by keyword only"):
        idempotent(view, ttl=1)  # type: ignore[call-overload]
    with pytest.raises(IdempotencyConfigurationError, match="Did you mean 'ttl'"):
        idempotent(tll=1)
    assert idempotent(Idempotency(ttl=1))(view).__name__ == "view"


def test_it_refuses_something_that_is_no_view() -> None:
    """Without a request there is nothing to protect."""
    with pytest.raises(IdempotencyConfigurationError, match="called without a request"):
        idempotent(lambda: None)()
