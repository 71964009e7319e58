"""One protected operation, by each way a project can protect it: what a request does, and what its answer looks like.

`protect(work, **options)` gives a function that sends one request under a key. The work is the same for all: a function
of the request's data that writes, and then returns an `Answer` or raises. Nothing here knows how the package is built.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import cycle
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import (
    NotRun,
    OperationInProgress,
    OutcomeUnknown,
    PayloadMismatch,
    StoreBusy,
    arun_once,
    get_operation,
    idempotent,
    run_once,
)
from django_idempotency.models import IdempotencyKey
from django_idempotency.views import IdempotencyMixin
from tests.shopapp.models import Order
from tests.views import view_class

DEFAULT = object()
Work = Callable[..., Any]
RUNS: list[Any] = []
COMMITS: list[Any] = []


@dataclass(frozen=True)
class Answer:
    """What the work returns, and what the caller gets."""

    status: int = 201
    body: Any = ""
    headers: dict[str, str] = field(default_factory=dict)
    replayed: str | None = None
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> tuple[Any, ...]:
        """What a replay repeats byte for byte."""
        return self.status, self.body, self.headers


class Refusal(Exception):
    """What the work raises. The REST framework and Django Ninja answer it with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"refused with {status}")
        self.status = status


class Adapter:
    """A way to protect an operation. The class attributes say what this way can do."""

    http = True
    answers_exceptions = False
    """Whether the framework answers the exceptions that the work raises."""
    by_method = True
    """Whether the option `methods` decides. A decorator on one handler or route protects just that."""
    asynchronous = False
    takes_over = True
    """Whether the mark reaches the URL callback, so that ATOMIC_REQUESTS leaves the alias to the package."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The URLs of one test."""
        self.urls = ModuleType("urls_of_the_contract")
        self.urls.urlpatterns = []  # type: ignore[attr-defined]
        with override_settings(ROOT_URLCONF=self.urls):
            yield

    def route(self, work: Work, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    def protect(self, work: Work, **options: Any) -> Callable[..., Answer]:
        self.urls.urlpatterns += [self.route(work, options)]  # type: ignore[attr-defined]

        def send(
            key: Any = DEFAULT, data: Any = None, *, user: Any = None, method: str = "post", headers: Any = None
        ) -> Answer:
            keyed = {} if key is None else {"Idempotency-Key": "k" if key is DEFAULT else key}
            client: Any = (AsyncClient if self.asynchronous else Client)()
            if user is not None:
                client.force_login(user)
            call = getattr(client, method)
            call = async_to_sync(call) if self.asynchronous else call
            response = call(
                "/orders", data or {}, content_type="application/json", headers={**keyed, **(headers or {})}
            )
            received = dict(response.headers)
            mark = received.pop("Idempotency-Replayed", None)
            cookies = {name: morsel.value for name, morsel in response.cookies.items()}
            return Answer(response.status_code, response.content, received, mark, cookies)

        return send


def responding(work: Work) -> Callable[[Any], HttpResponse]:
    """The work as a view of plain Django."""

    def create(request: Any, **kwargs: Any) -> HttpResponse:
        return response_of(work(request))

    return create


def response_of(answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status, headers=answer.headers, content_type="application/json")
    return with_cookies(response, answer)


def with_cookies(response: Any, answer: Answer) -> Any:
    for name, value in answer.cookies.items():
        response.set_cookie(name, value)
    return response


def aresponding(work: Work) -> Callable[[Any], Any]:
    """The same as a coroutine function."""

    async def create(request: Any) -> HttpResponse:
        return response_of(await sync_to_async(work)(request))

    return create


class Function(Adapter):
    def route(self, work: Work, options: dict[str, Any]) -> Any:
        return path("orders", idempotent(**options)(responding(work)))


class AsyncFunction(Adapter):
    asynchronous = True

    def route(self, work: Work, options: dict[str, Any]) -> Any:
        return path("orders", idempotent(**options)(aresponding(work)))


class Handler(Adapter):
    by_method = takes_over = False

    def route(self, work: Work, options: dict[str, Any]) -> Any:
        orders = method_decorator(idempotent(**options), name="post")(orders_of(responding(work)))
        return path("orders", orders.as_view())


class Class(Adapter):
    def route(self, work: Work, options: dict[str, Any]) -> Any:
        return path("orders", orders_of(responding(work), IdempotencyMixin, View, idempotency=options).as_view())


class Dispatch(Adapter):
    def route(self, work: Work, options: dict[str, Any]) -> Any:
        orders = method_decorator(idempotent(**options), name="dispatch")(orders_of(responding(work)))
        return path("orders", orders.as_view())


class AsyncClass(Adapter):
    asynchronous = True

    def route(self, work: Work, options: dict[str, Any]) -> Any:
        return path("orders", orders_of(aresponding(work), IdempotencyMixin, View, idempotency=options).as_view())


def orders_of(view: Callable[[Any], Any], *bases: type, **attributes: Any) -> Any:
    """A class-based view that answers POST, PUT and GET in one way."""
    return view_class(*bases, post=view, put=view, get=view, **attributes)


class RestFramework(Adapter):
    """The mixin."""

    answers_exceptions = True

    def handler(self, work: Work) -> Callable[[Any], Any]:
        from rest_framework.exceptions import APIException
        from rest_framework.response import Response

        def create(request: Any) -> Response:
            try:
                answer = work(request)
            except Refusal as error:
                refused = APIException(str(error))
                refused.status_code = error.status
                raise refused from error
            response = Response(json.loads(answer.body or "null"), status=answer.status, headers=answer.headers)
            return with_cookies(response, answer)

        return create

    def route(self, work: Work, options: dict[str, Any]) -> Any:
        from rest_framework.views import APIView

        from django_idempotency.rest_framework import IdempotencyMixin

        return path("orders", orders_of(self.handler(work), IdempotencyMixin, APIView, idempotency=options).as_view())


class RestFrameworkDecorator(RestFramework):
    """Below @api_view."""

    takes_over = False

    def route(self, work: Work, options: dict[str, Any]) -> Any:
        from rest_framework.decorators import api_view

        return path("orders", api_view(["GET", "POST", "PUT"])(idempotent(**options)(self.handler(work))))


class Ninja(Adapter):
    answers_exceptions = True
    by_method = takes_over = False

    def route(self, work: Work, options: dict[str, Any]) -> Any:
        from ninja import NinjaAPI

        from django_idempotency.ninja import idempotent_operation

        api = NinjaAPI(urls_namespace=str(uuid4()), docs_url=None, openapi_url=None)

        @api.exception_handler(Refusal)
        def refused(request: Any, error: Refusal) -> Any:
            return api.create_response(request, {"detail": str(error)}, status=error.status)

        api.post("/orders")(idempotent_operation(**options)(self.operation(work)))
        api.api_operation(["GET", "PUT"], "/orders")(self.operation(work))
        return path("", api.urls)

    def operation(self, work: Work) -> Any:
        return lambda request: response_of(work(request))


class AsyncNinja(Ninja):
    asynchronous = True
    operation = staticmethod(aresponding)


class Once(Adapter):
    """`run_once`: the value of the work is what is kept, and what HTTP says by a status is an exception."""

    http = False
    STATUSES = {PayloadMismatch: 422, OperationInProgress: 409, OutcomeUnknown: 409, StoreBusy: 503, ValueError: 400}

    def run(self, work: Any, **options: Any) -> Any:
        return run_once(work, **options)

    def protect(self, work: Work, **options: Any) -> Callable[..., Answer]:
        def run(operation: Any = None) -> Any:
            answer = work(operation)
            return {"status": answer.status, "body": answer.body, "headers": answer.headers}

        def send(key: Any = DEFAULT, data: Any = None, *, user: Any = None) -> Answer:
            told = {"scope": f"user:{user.pk}" if user else "s", "key": "k" if key is DEFAULT else key}
            try:
                result = self.run(run, payload=data or {}, **told, **{"operation": "orders", **options})
            except (NotRun, ValueError) as error:
                if not isinstance(error, NotRun) and "key=" not in str(error):
                    raise
                status = next(status for kind, status in self.STATUSES.items() if isinstance(error, kind))
                retry_after = getattr(error, "retry_after", None)
                return Answer(status, str(error), {} if retry_after is None else {"Retry-After": str(retry_after)})
            return Answer(**result.value, replayed=str(result.replayed).lower())

        return send


class AsyncOnce(Once):
    def run(self, work: Any, **options: Any) -> Any:
        return async_to_sync(arun_once)(work, **options)


def operation_of(request: Any) -> Any:
    """The leased operation, of what the work was given: a request, or the operation itself."""
    return request if hasattr(request, "call") else get_operation(request)


def all_adapters() -> list[Adapter]:
    found: list[Adapter] = [Function(), AsyncFunction(), Handler(), Class(), Dispatch(), AsyncClass()]
    if find_spec("rest_framework"):
        found += [RestFramework(), RestFrameworkDecorator()]
    if find_spec("ninja"):
        found += [Ninja(), AsyncNinja()]
    return [*found, Once(), AsyncOnce()]


def adapters(able: Callable[[Adapter], bool]) -> Any:
    """A fixture: one after the other of those that can."""

    @pytest.fixture(params=filter(able, all_adapters()), ids=lambda adapter: type(adapter).__name__)
    def serving(request: pytest.FixtureRequest) -> Iterator[Adapter]:
        RUNS.clear()
        COMMITS.clear()
        with request.param.serving():
            yield request.param

    return serving


def order(status: int = 201) -> Answer:
    """Make an order; the answer names it, by body and header."""
    made = Order.objects.create()
    RUNS.append(made.pk)
    headers = {"Location": f"/orders/{made.pk}", "X-Shop": "tea"}
    return Answer(status, json.dumps({"id": made.pk}), headers if status < 300 else {})


def create(request: Any) -> Answer:
    return order()


def answers(*statuses: int) -> Callable[[Any], Answer]:
    """Work that answers with one status after the other, and begins again."""
    turns = cycle(statuses)
    return lambda request: order(next(turns))


def raises(*errors: Exception) -> Callable[[Any], Answer]:
    """Work that raises one error after the other, and begins again."""
    turns = cycle(errors)

    def work(request: Any) -> Answer:
        order()
        raise next(turns)

    return work


def marks(sent: list[Answer]) -> list[tuple[int, str | None]]:
    return [(answer.status, answer.replayed) for answer in sent]


def counts() -> tuple[int, int]:
    return Order.objects.count(), IdempotencyKey.objects.count()


def code(answer: Answer) -> str:
    return str(json.loads(answer.body)["code"])
