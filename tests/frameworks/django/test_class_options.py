"""What the mixin (class_options.py) protects where a class does more than name its handlers.

Its options and its place in the class are in test_views.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import View

from django_idempotency.endpoints import list_endpoints
from django_idempotency.engine.events import unprotected
from django_idempotency.views import IdempotencyMixin
from tests.http import replayed
from tests.shopapp.models import Order
from tests.views import Retrying, answers, creates, paths, view_class

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.django.test_class_options")]


class AsyncRetrying(View):
    async def dispatch(self, request: HttpRequest, *args: Any) -> Any:  # type: ignore[override]
        for again in (True, False):
            try:
                return await super().dispatch(request, again)  # type: ignore[misc]
            except OperationalError:
                assert again
        raise AssertionError("it fails once")


def fails_once(request: HttpRequest, again: bool) -> HttpResponse:
    order = Order.objects.create()
    if again:
        raise OperationalError
    return JsonResponse({"id": order.pk}, status=201)


async def afails_once(request: HttpRequest, again: bool) -> HttpResponse:
    return await sync_to_async(fails_once)(request, again)


urlpatterns = paths(
    retrying=view_class(IdempotencyMixin, Retrying, View, post=fails_once).as_view(),
    aretrying=view_class(IdempotencyMixin, AsyncRetrying, View, post=afails_once).as_view(),
    retrying_above=view_class(Retrying, IdempotencyMixin, View, post=fails_once).as_view(),
)


@pytest.mark.parametrize("path", ["/retrying", "/aretrying", "/retrying_above"])
def test_a_dispatch_that_calls_the_handler_again_is_protected(path: str, post: Post) -> None:
    """The order of the first run is rolled back, and that of the second one replayed."""
    assert [(sent.status_code, replayed(sent)) for sent in (post(path), post(path))] == [(201, "false"), (201, "true")]
    assert Order.objects.count() == 1


class Picking(View):
    """Goes below the mixin, and calls what the form names."""

    def dispatch(self, request: HttpRequest, *args: Any) -> Any:
        name = request.GET.get("call")
        return getattr(self, name)(request) if name else super().dispatch(request)


Picked = view_class(
    IdempotencyMixin, Picking, View, post=creates(), pay=staticmethod(creates()), refuse=staticmethod(answers("", 403))
)
urlpatterns += paths(
    picked=Picked.as_view(),
    picked_off=Picked.as_view(idempotency=None),
    picked_put=Picked.as_view(idempotency={"methods": ["PUT"]}),
    picked_by_request=type("ByRequest", (Picked,), {"get_idempotency_options": lambda self: {}}).as_view(),
)


def test_a_dispatch_that_calls_something_else_than_the_handler_is_logged(post: Post, caplog: Any) -> None:
    """Once for each class, and not where the handler ran or nothing is protected."""
    unprotected.cache_clear()
    names = ("picked", "picked?call=refuse", "picked_off?call=pay", "picked_put?call=pay", "picked_by_request?call=pay")
    caplog.set_level("WARNING", "django_idempotency")
    for name in names * 2:
        post(f"/{name}")

    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "django_idempotency"]

    assert logged() == []
    for _ in range(2):
        post("/picked?call=pay")
    assert logged() == [
        "tests.views.Orders runs without protection, because its dispatch() answers a POST without calling the "
        "handler: each retry runs again."
    ]


class Acting(view_class(IdempotencyMixin, View, post=creates())):
    """Its `action` is a name of the project."""

    action = "transfer"
    idempotency = None
    idempotency_actions = {"post": {"ttl": 60}}


class ByInit(view_class(IdempotencyMixin, View, post=creates())):
    idempotency = None


urlpatterns += paths(acting=Acting.as_view(), by_init=ByInit.as_view(idempotency_actions={"post": {"ttl": 60}}))


@pytest.mark.parametrize("path", ["/acting", "/by_init"])
def test_idempotency_actions_protect_a_handler_of_an_unprotected_class(path: str, post: Post) -> None:
    """Also where the class has an `action` of its own, and where as_view() sets them."""
    assert [replayed(post(path)) for _ in range(2)] == ["false", "true"]
    assert [found.protected for found in list_endpoints() if found.route == path[1:]] == [True]
