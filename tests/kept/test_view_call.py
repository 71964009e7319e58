"""What a view may return, and how little of Django's may be around it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch, path
from django.views import View

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.views import IdempotencyMixin
from tests.http import replayed
from tests.shopapp.models import Order
from tests.views import answers

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.kept.test_view_call")]


def returns(request: HttpRequest) -> Any:
    """None, or a coroutine that nothing awaits."""
    Order.objects.create()
    return asyncio.sleep(0) if "coroutine" in request.GET else None


class Asynchronous(IdempotencyMixin, View):
    async def post(self, request: HttpRequest) -> Any:
        return asyncio.sleep(0) if "coroutine" in request.GET else None


urlpatterns = [path("function", idempotent(returns)), path("asynchronous", Asynchronous.as_view())]


def djangos_words(response: Any) -> str:
    """What Django says of this response, after the view's name."""
    with pytest.raises(ValueError, match="HttpResponse") as caught:
        BaseHandler().check_response(response, returns)
    return str(caught.value).removeprefix(f"The view {__name__}.returns")


@pytest.mark.parametrize(("path", "name"), [("function", "returns"), ("asynchronous", "Asynchronous.post")])
@pytest.mark.parametrize(("query", "told"), [("", "returned None"), ("?coroutine", "returned an unawaited coroutine")])
def test_a_view_that_returns_no_response_is_told_in_djangos_words(
    client: Any, path: str, name: str, query: str, told: str
) -> None:
    """And before the COMMIT: nothing is written. No coroutine is left behind."""
    coroutine = asyncio.sleep(0)
    coroutine.close()
    with pytest.raises(ValueError, match=told) as caught:
        client.post(f"/{path}{query}", headers={"Idempotency-Key": "k"})
    assert str(caught.value) == f"The view {__name__}.{name}{djangos_words(coroutine if query else None)}"
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_anything_else_is_no_response_either(rf: Any) -> None:
    """Django would fail somewhere in its middleware."""
    with pytest.raises(ValueError, match=r"HttpResponse object\. It returned 'text'"):
        idempotent(lambda request: "text")(rf.post("/", headers={"Idempotency-Key": "k"}))


@pytest.mark.parametrize("match_", [SimpleNamespace(), SimpleNamespace(route="orders/")])
def test_a_resolver_match_may_have_less_than_djangos(rf: Any, match_: Any) -> None:
    """Without func, args and kwargs, and without a route: then the view names the operation."""
    view = idempotent(required=False, may_replay=lambda request, number: number == 1)(answers("ran"))

    def send(**headers: str) -> HttpResponse:
        request = rf.post("/", headers=headers)
        request.resolver_match = match_
        return view(request, number=1)

    assert send().content == b"ran"
    assert [replayed(send(**{"Idempotency-Key": "k"})) for _ in range(2)] == ["false", "true"]
    name = getattr(match_, "route", f"tests.views.{view.__qualname__}")
    assert IdempotencyKey.objects.get().operation == f"POST {name}"


def test_may_replay_gets_what_the_url_names(rf: Any) -> None:
    """By position and by name, as the view."""
    asked = []
    view = idempotent(may_replay=lambda request, *args, **kwargs: asked.append((args, kwargs)) or True)(answers())
    for _ in range(2):
        request = rf.post("/", headers={"Idempotency-Key": "k"})
        request.resolver_match = ResolverMatch(view, ("paris",), {"floor": 2}, route="shops/")
        view(request)
    assert asked == [(("paris",), {"floor": 2})]


def test_a_resolver_match_without_a_route_does_not_make_two_views_one(rf: Any) -> None:
    """Django's own has no route if a test makes it."""

    class Says:
        def __init__(self, text: str) -> None:
            self.text = text

        def __call__(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(self.text)

    def first(request: HttpRequest) -> HttpResponse:
        return HttpResponse("first")

    def second(request: HttpRequest) -> HttpResponse:
        return HttpResponse("second")

    answers = []
    for view in (first, second, Says("third"), Says("fourth")):
        request = rf.post("/", headers={"Idempotency-Key": "k"})
        request.resolver_match = ResolverMatch(view, (), {})
        answers.append(idempotent(view)(request).content)
    assert answers == [b"first", b"second", b"third", b"fourth"]


def test_a_view_gets_what_its_url_names(rf: Any) -> None:
    """By position and by name, whether or not it is asynchronous, and the method protected."""

    def says_its_arguments(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse(f"{args} {kwargs}")

    async def awaited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return says_its_arguments(request, *args, **kwargs)

    for view in (idempotent(says_its_arguments), async_to_sync(idempotent(awaited))):
        for request in (rf.post("/", headers={"Idempotency-Key": "k"}), rf.get("/")):
            assert view(request, 59, shop="x").content == b"(59,) {'shop': 'x'}"
