"""The asynchronous views of adrf, which calls a handler by what `iscoroutinefunction` says about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncClient, Client
from django.urls import clear_url_caches, path

pytest.importorskip("adrf", reason="NOT RUN: adrf is missing: it is in the dependency group `adrf`")

from adrf.views import APIView
from adrf.viewsets import ViewSet
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView as SynchronousView

from django_idempotency import Idempotency, IdempotencyConfigurationError, get_operation, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.http import replayed
from tests.shopapp.models import Order
from tests.views import acreates, creates, view_class

KEYED = {"headers": {"Idempotency-Key": "one"}, "content_type": "application/json"}
pytestmark = pytest.mark.django_db(transaction=True)
urlpatterns: list[Any] = []


@pytest.fixture(autouse=True)
def _served(settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = __name__
    yield
    urlpatterns.clear()
    clear_url_caches()


def serve(view: Any) -> None:
    urlpatterns[:] = [path("orders/", view)]
    clear_url_caches()


class AsyncOrders(IdempotencyMixin, ViewSet):
    async def create(self, request: Any) -> Response:
        return Response({"id": (await Order.objects.acreate()).pk}, status=201)


class Orders(IdempotencyMixin, ViewSet):
    def create(self, request: Any) -> Response:
        return Response({"id": Order.objects.create().pk}, status=201)


class ByDecorator(ViewSet):
    @idempotent
    async def create(self, request: Any) -> Response:
        return Response({"id": (await Order.objects.acreate()).pk}, status=201)


class ProjectsOwn(IdempotencyMixin, SynchronousView):
    """A base class that a project has had since before adrf."""


VIEWS = {
    "async": lambda: view_class(IdempotencyMixin, APIView, post=acreates()).as_view(),
    "sync": lambda: view_class(IdempotencyMixin, APIView, post=creates()).as_view(),
    "a base class of the project": lambda: view_class(ProjectsOwn, APIView, post=acreates()).as_view(),
    "async viewset": lambda: AsyncOrders.as_view({"post": "create"}),
    "sync viewset": lambda: Orders.as_view({"post": "create"}),
    "decorated viewset": lambda: ByDecorator.as_view({"post": "create"}),
}
every_view = pytest.mark.parametrize("made", VIEWS.values(), ids=VIEWS)


@every_view
def test_it_runs_once(made: Callable[[], Any], client: Client) -> None:
    """On WSGI. Another body under the key is refused."""
    serve(made())
    answers = [client.post("/orders/", {"amount": amount}, **KEYED) for amount in (1, 1, 2)]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert [replayed(answer) for answer in answers] == ["false", "true", "false"]
    assert answers[0].content == answers[1].content
    assert Order.objects.count() == 1


@every_view
def test_it_runs_once_on_asgi(made: Callable[[], Any], async_client: AsyncClient) -> None:
    """With the views' own event loop."""
    serve(made())
    answers = [async_to_sync(async_client.post)("/orders/", {}, **KEYED) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == ["false", "true"]
    assert Order.objects.count() == 1


@pytest.mark.parametrize("made", [VIEWS["async"], VIEWS["async viewset"]], ids=["view", "viewset"])
def test_under_atomic_requests(
    made: Callable[[], Any], client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's transaction replaces Django's, which would refuse an asynchronous view."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    serve(made())
    assert [replayed(client.post("/orders/", {}, **KEYED)) for _ in range(2)] == ["false", "true"]
    assert Order.objects.count() == 1


def test_the_callers_check_comes_first(client: Client) -> None:
    """Nothing is claimed for a request that the permissions refuse."""
    serve(view_class(IdempotencyMixin, APIView, post=acreates(), permission_classes=[IsAuthenticated]).as_view())
    assert client.post("/orders/", {}, **KEYED).status_code in (401, 403)
    assert not Order.objects.exists()


def test_leased(client: Client) -> None:
    """A call of an asynchronous handler is made once."""
    calls: list[int] = []

    async def pay(request: Any) -> Response:
        number = await get_operation(request).acall("charge", calls.append, 1)
        return Response({"number": number}, status=201)

    serve(view_class(IdempotencyMixin, APIView, post=pay, idempotency=Idempotency(lease=60)).as_view())
    assert [replayed(client.post("/orders/", {}, **KEYED)) for _ in range(2)] == ["false", "true"]
    assert calls == [1]


@pytest.mark.parametrize("bases", [(APIView, IdempotencyMixin), (APIView, ProjectsOwn), (ViewSet, IdempotencyMixin)])
def test_the_wrong_order_is_refused(bases: tuple[type, ...]) -> None:
    """When the class is made: adrf's dispatch never calls the mixin's, and each retry would run again."""
    with pytest.raises(IdempotencyConfigurationError, match=r"IdempotencyMixin must come before the view class"):
        view_class(*bases, post=acreates())
