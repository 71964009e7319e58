"""Where the decorators refuse to stand in Django Ninja."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import update_wrapper
from types import ModuleType
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import get_resolver, path
from django.views.decorators.cache import never_cache

pytest.importorskip("ninja")

import ninja
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from ninja.testing import TestClient

from django_idempotency import IdempotencyConfigurationError, idempotent
from django_idempotency.ninja import idempotent_operation
from tests.frameworks.ninja.operations import maker
from tests.shopapp.models import Order

Serve = Callable[[NinjaAPI], Client]
RIGHT = '    @api.post("/orders")\n    @idempotent_operation\n    def create_order'


@pytest.fixture
def make() -> Any:
    return maker()


@pytest.fixture
def api(key: str) -> NinjaAPI:
    return NinjaAPI(urls_namespace=key, docs_url=None, openapi_url=None)


@pytest.fixture
def serve(client: Client) -> Iterator[Serve]:
    """Make these routes the project's."""
    module = ModuleType("urls")
    with override_settings(ROOT_URLCONF=module):

        def routes(api: NinjaAPI) -> Client:
            module.urlpatterns = [path("", api.urls)]  # type: ignore[attr-defined]
            return client

        yield routes


def refused(act: Callable[[], Any], *texts: str) -> None:
    with pytest.raises(IdempotencyConfigurationError) as caught:
        act()
    for text in (*texts, RIGHT):
        assert text in str(caught.value)


def test_above_the_route_decorator(api: NinjaAPI) -> None:
    """Django Ninja would never call what it returns."""
    view = api.post("/orders")(lambda request: None)
    refused(lambda: idempotent_operation(view), "sits above the route decorator of test_above")
    refused(lambda: idempotent(view), "idempotent sits above the route decorator of test_above")


@pytest.mark.parametrize("decorator", [idempotent, idempotent_operation, idempotent_operation(ttl=1)])
def test_around_the_whole_operation(decorator: Any, api: NinjaAPI, make: Any) -> None:
    """There nobody is authenticated yet: `decorate_view`, above and below the route decorator."""
    api.post("/a")(make)
    refused(lambda: decorate_view(decorator)(make), "above Django Ninja's authentication")
    refused(lambda: api.post("/b")(decorate_view(decorator)(lambda request: None)), "Django Ninja's authentication")


@pytest.mark.parametrize(
    ("decorator", "mode", "text"),
    [
        (idempotent, {"mode": "view"}, "above Django Ninja's authentication"),
        (idempotent_operation, {"mode": "view"}, "above Django Ninja's authentication"),
        # Django Ninja does not tell its default from a decorator above the route decorator, which it would never call.
        (idempotent_operation(ttl=1), {}, "or in add_decorator"),
        (idempotent, {"mode": "operation"}, "or in add_decorator"),
    ],
)
def test_around_all_operations(api: NinjaAPI, make: Any, decorator: Any, mode: Any, text: str) -> None:
    """When the URLs are made."""
    api.post("/a")(make)
    api.add_decorator(decorator, **mode)
    refused(lambda: api.urls, text)


@pytest.mark.django_db
def test_called_by_another_operation(api: NinjaAPI, serve: Serve, make: Any) -> None:
    """It would get the options of that operation."""
    inner = idempotent_operation(make)
    api.post("/orders")(idempotent_operation(required=False)(lambda request: inner(request)))
    client = serve(api)

    refused(lambda: client.post("/orders"), "is not below the route decorator of an operation")
    assert not Order.objects.exists()


def test_the_plain_decorator_is_refused_by_the_route(api: NinjaAPI, make: Any) -> None:
    """When Django Ninja makes the operation; the right decorator is named."""
    refused(lambda: api.post("/orders")(idempotent(make)), "idempotent cannot protect make")


@pytest.mark.django_db
def test_the_plain_decorator_is_refused_by_the_first_request(api: NinjaAPI, serve: Serve, key: str, make: Any) -> None:
    """An operation that calls a protected function hides it from the route."""
    inner = idempotent(make)
    api.post("/orders")(lambda request: inner(request))
    client = serve(api)

    refused(lambda: client.post("/orders", headers={"Idempotency-Key": key}), "idempotent cannot protect make")
    assert not Order.objects.exists()


def test_the_plain_decorator_leaves_the_view_itself_alone(api: NinjaAPI, make: Any) -> None:
    """The unprotected function can be an operation."""
    decorate_view(lambda run: run)(make)  # leaves a list on the function, which wraps() shares
    idempotent(make)

    api.post("/orders")(make)


@pytest.mark.django_db
def test_other_decorators_of_the_operation_are_kept(api: NinjaAPI, serve: Serve, make: Any, key: str) -> None:
    """`decorate_view` below it still wraps the whole operation, here and on the unprotected function only once."""

    def marked(run: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            response = run(*args, **kwargs)
            response["X-Marked"] = response.get("X-Marked", "") + "!"
            return response

        return wrapper

    api.post("/orders")(idempotent_operation(decorate_view(marked)(make)))
    api.get("/orders")(make)
    client = serve(api)

    first, second = (client.post("/orders", headers={"Idempotency-Key": key}) for _ in range(2))
    assert [(r["X-Marked"], r["Idempotency-Replayed"]) for r in (first, second)] == [("!", "false"), ("!", "true")]
    assert client.get("/orders")["X-Marked"] == "!"


class Wrapped:
    """A decorator that is a class."""

    def __init__(self, view: Any) -> None:
        update_wrapper(self, view)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]


@pytest.mark.django_db
@pytest.mark.parametrize("decorator", [never_cache, Wrapped])
def test_it_finds_its_operation_below_a_decorated_url(
    decorator: Any, api: NinjaAPI, serve: Serve, make: Any, key: str
) -> None:
    """As somebody may decorate the callbacks of `api.urls`."""
    api.post("/orders")(idempotent_operation(make))
    client = serve(api)
    (root,) = get_resolver().url_patterns
    for pattern in root.url_patterns:
        pattern.callback = decorator(pattern.callback)

    marks = [client.post("/orders", headers={"Idempotency-Key": key})["Idempotency-Replayed"] for _ in range(2)]
    assert marks == ["false", "true"]


def test_safe_methods_only(api: NinjaAPI, make: Any) -> None:
    """There is nothing to protect."""
    with pytest.raises(IdempotencyConfigurationError, match=r"make answers GET, which must not change anything"):
        api.get("/orders")(idempotent_operation(make))


@pytest.fixture
def items() -> Any:
    """A new function: routing leaves a mark on it."""

    def items(request: HttpRequest) -> Any:
        yield {"id": Order.objects.create().pk}

    return items


def test_a_stream_of_items_is_refused(api: NinjaAPI, items: Any) -> None:
    """They are written when the transaction is over."""
    streamed = pytest.importorskip("ninja.streaming").JSONL[dict]
    with pytest.raises(IdempotencyConfigurationError, match="items streams its items"):
        api.post("/items", response=streamed)(idempotent_operation(items))


def test_outside_of_django_ninja(rf: Any, make: Any) -> None:
    """A view of plain Django, or no view at all."""
    with pytest.raises(IdempotencyConfigurationError, match=r"behind '/orders'.*For a Django view use idempotent"):
        idempotent_operation(make)(rf.post("/orders"))
    with pytest.raises(IdempotencyConfigurationError, match="called without a Ninja request"):
        idempotent_operation(make)()


@pytest.mark.skipif(ninja.__version__ < "1.7", reason="its requests are mocks")
@pytest.mark.django_db
def test_the_test_client_of_django_ninja_works(api: NinjaAPI, key: str, make: Any) -> None:
    """It copies header names as they are written, so in upper case."""
    api.post("/orders")(idempotent_operation(make))
    client = TestClient(api)

    first, second = (client.post("/orders", headers={"IDEMPOTENCY-KEY": key}) for _ in range(2))
    assert (first.headers["Idempotency-Replayed"], second.headers["Idempotency-Replayed"]) == ("false", "true")
    assert first.json() == second.json() == {"id": Order.objects.get().pk}
