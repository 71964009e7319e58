"""Pagination, and the class controllers of django-ninja-extra."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import path

pytest.importorskip("ninja")

from ninja import NinjaAPI, Schema
from ninja.pagination import PageNumberPagination, paginate
from ninja.security import HttpBearer

from django_idempotency import IdempotencyConfigurationError, idempotent
from django_idempotency.endpoints import list_endpoints
from django_idempotency.ninja import idempotent_operation
from tests.http import replayed
from tests.shopapp.models import Order


class OrderOut(Schema):
    id: int


class Token(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return token


def search(request: HttpRequest) -> Any:
    Order.objects.create()
    return Order.objects.order_by("pk")


def retried(api: Any, url: str, **headers: str) -> list[Any]:
    """Send a request twice, under one key, to an API at the root."""
    module: Any = ModuleType("urls")
    module.urlpatterns = [path("", api.urls)]
    with override_settings(ROOT_URLCONF=module):
        answers = [Client().post(url, headers={"Idempotency-Key": "one", **headers}) for _ in range(2)]
        found = [(one.method, one.route, one.protected) for one in list_endpoints() if one.own]
    assert found == [("POST", url.removeprefix("/"), True)]
    return answers


@pytest.fixture(autouse=True)
def _installed(settings: Any) -> None:
    if find_spec("ninja_extra") is not None:
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "ninja_extra"]


def pages(package: str) -> tuple[Callable[..., Any], Any]:
    """Return a decorator of this package that makes pages, and what the operation's schema says."""
    if package == "ninja":
        return paginate(PageNumberPagination), list[OrderOut]
    extra = pytest.importorskip("ninja_extra")
    paging = extra.pagination
    return paging.paginate(paging.PageNumberPaginationExtra), extra.schemas.PaginatedResponseSchema[OrderOut]


@pytest.mark.parametrize("package", ["ninja", "ninja_extra"])
class TestPagination:
    @pytest.mark.django_db
    def test_below_the_protection_the_page_is_replayed(self, package: str, key: str) -> None:
        decorate, schema = pages(package)
        api = NinjaAPI(urls_namespace=key)
        api.post("/search", response=schema)(idempotent_operation(decorate(search)))
        api.get("/search")(lambda request: "Django Ninja makes a second URL of it")
        answers = retried(api, "/search")
        assert [replayed(answer) for answer in answers] == ["false", "true"]
        assert answers[0].json()["count"] == 1
        assert answers[1].content == answers[0].content

    def test_above_it_is_refused_at_the_route(self, package: str, key: str) -> None:
        """It would get the stored response in the place of a list."""
        decorate, schema = pages(package)
        with pytest.raises(IdempotencyConfigurationError, match="Put @paginate below idempotent_operation"):
            NinjaAPI(urls_namespace=key).post("/search", response=schema)(decorate(idempotent_operation(search)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("colour", ["def", "async def"])
def test_a_controller_runs_once_and_keeps_its_headers(colour: str, key: str) -> None:
    """Each method of a class gets a controller in the place of a request."""
    extra = pytest.importorskip("ninja_extra")

    class Orders(extra.ControllerBase):
        if colour == "def":

            @extra.http_post("/orders", response=OrderOut)
            @idempotent_operation
            def create(self) -> Any:
                self.context.response["X-Caller"] = self.context.request.auth
                return Order.objects.create()
        else:

            @extra.http_post("/orders", response=OrderOut)
            @idempotent_operation
            async def create(self) -> Any:
                self.context.response["X-Caller"] = self.context.request.auth
                return await Order.objects.acreate()

    api = extra.NinjaExtraAPI(urls_namespace=key)
    api.register_controllers(extra.api_controller("", auth=Token())(Orders))
    answers = retried(api, "/orders", Authorization="Bearer ann")
    assert [(answer.status_code, answer["X-Caller"], replayed(answer)) for answer in answers] == [
        (200, "ann", "false"),
        (200, "ann", "true"),
    ]
    assert answers[0].json() == {"id": Order.objects.get().pk}


@pytest.mark.parametrize("decorator", [idempotent, idempotent_operation])
def test_above_the_route_decorator_of_a_controller(decorator: Any) -> None:
    """A decorator is refused, because the controller would never call what it returns."""
    extra = pytest.importorskip("ninja_extra")
    routed = extra.http_post("/orders")(lambda self: None)
    with pytest.raises(IdempotencyConfigurationError, match="sits above the route decorator of test_above"):
        decorator(routed)
