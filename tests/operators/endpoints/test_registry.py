"""The declarations that recovery finds by their operation, and what becomes of an answer of `reconcile`."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency import IdempotencyConfigurationError, Result, idempotent, once
from django_idempotency.engine.declare.registry import Declaration, registered
from django_idempotency.views import IdempotencyMixin
from tests.operators.endpoints.shop import view
from tests.views import answers, view_class


def ask(operation: Any) -> None: ...


def ask_otherwise(operation: Any) -> None: ...


def leased(operation: str, reconcile: Any = ask) -> Any:
    return {"lease": 60, "operation": operation, "reconcile": reconcile}


def only(operation: str) -> Declaration:
    (declaration,) = registered(operation)
    return declaration


def test_a_view() -> None:
    """With an operation and a reconcile of its own; the same view may be decorated again."""
    for _ in range(2):
        idempotent(**leased("registry.view"))(view)
    assert only("registry.view").options.reconcile is ask
    idempotent(lease=60, operation="registry.silent")(view)
    assert registered("registry.silent") == []


def test_views_that_share_an_operation() -> None:
    """Each reconcile is there once, so that recovery sees whether the views agree."""
    for reconcile in (ask, ask, ask_otherwise):
        idempotent(**leased("registry.shared", reconcile))(view)
    assert [found.options.reconcile for found in registered("registry.shared")] == [ask, ask_otherwise]


def test_a_method_before_the_first_request() -> None:
    """`method_decorator` decorates on each request, so the call that makes the decorator registers."""
    decorator = method_decorator(idempotent(**leased("registry.method")))
    assert only("registry.method").options.reconcile is ask

    class Pay(view_class(post=answers())):
        post = decorator(view_class(post=answers()).post)

    assert len(registered("registry.method")) == 1
    assert Pay


def test_a_function_of_once() -> None:
    """Also under its dotted name. If the function is defined again, the last one counts."""
    for reconcile in (ask_otherwise, ask):

        @once(scope="s", key=lambda: "k", **leased("registry.once", reconcile))
        def work(*, operation: Any) -> None: ...

    found = only("registry.once")
    assert (found.once, found.options.reconcile) == (True, ask)
    assert found.reconciled(Result({"paid": 5}, replayed=False)).snapshot.body == b'{"value": {"paid": 5}}'
    with pytest.raises(IdempotencyConfigurationError, match="return Result"):
        found.reconciled(HttpResponse())


def test_a_mixin() -> None:
    """When its URL is made, with what `as_view()` is given, and whether the view decides for each request."""
    Pay = view_class(IdempotencyMixin, View, post=answers(), idempotency=leased("registry.mixin"))

    class Dynamic(Pay):
        idempotency = leased("registry.dynamic")

        def get_idempotency_options(self) -> Any: ...

    Pay.as_view()
    Pay.as_view(idempotency=leased("registry.given"))
    Dynamic.as_view()
    found = [only(f"registry.{name}").by_request for name in ("mixin", "given", "dynamic")]
    assert found == [False, False, True]


def test_an_answer_is_rendered_and_final() -> None:
    """As a view's own would be, before it is stored."""
    idempotent(**leased("registry.rendered"))(view)
    template: Any = engines["django"].from_string("paid {{ amount }}")
    late = SimpleTemplateResponse(template, {"amount": 5}, status=201)
    snapshot = only("registry.rendered").reconciled(late).snapshot
    assert snapshot is not None
    assert (snapshot.status_code, snapshot.body) == (201, b"paid 5")
    for returned, problem in ((HttpResponse(status=503), "is not final"), ("paid", "return an HttpResponse")):
        with pytest.raises(IdempotencyConfigurationError, match=problem):
            only("registry.rendered").reconciled(returned)


class TestRestFramework:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("rest_framework")

    def test_actions_of_a_viewset(self) -> None:
        """Standard actions, and those that a router passes on."""
        from rest_framework.viewsets import ViewSet

        from django_idempotency.rest_framework import IdempotencyMixin as RestMixin

        class Orders(RestMixin, ViewSet):
            idempotency_actions = {"create": leased("registry.create")}

            def create(self, request: Any) -> Any: ...

            def pay(self, request: Any) -> Any: ...

        Orders.as_view({"post": "create"})
        Orders.as_view({"post": "pay"}, idempotency=leased("registry.pay"))
        assert [only(f"registry.{name}").target for name in ("create", "pay")] == [Orders] * 2
        assert only("registry.pay").reconciled(HttpResponse("x")).snapshot.body == b"x"

    def test_an_answer_is_rendered_as_json(self) -> None:
        """Without a client to negotiate with: by the view's JSON renderer, or the framework's."""
        from rest_framework.decorators import api_view, renderer_classes
        from rest_framework.renderers import BrowsableAPIRenderer
        from rest_framework.response import Response

        def protected(name: str) -> Any:
            return idempotent(**leased(name))(lambda request: None)

        api_view(["POST"])(renderer_classes([BrowsableAPIRenderer, Hal])(protected("registry.hal")))
        api_view(["POST"])(renderer_classes([BrowsableAPIRenderer])(protected("registry.html")))
        given = {"registry.hal": "application/hal+json", "registry.html": "application/json"}
        for name, media_type in {**given, "registry.handler": "application/hal+json"}.items():
            snapshot = only(name).reconciled(Response({"id": 1}, status=201)).snapshot
            assert snapshot is not None
            assert (snapshot.status_code, snapshot.body) == (201, b'{"id":1}')
            assert snapshot.header("Content-Type") == media_type
        assert only("registry.hal").reconciled(HttpResponse("x")).snapshot.body == b"x"


try:
    from rest_framework.renderers import JSONRenderer
    from rest_framework.views import APIView
except ModuleNotFoundError:
    pass
else:

    class Hal(JSONRenderer):
        media_type = "application/hal+json"

    class OfModule(APIView):
        renderer_classes = [Hal]

        @idempotent(**leased("registry.handler"))
        def post(self, request: Any) -> Any: ...


def test_django_ninja() -> None:
    """What an operation may return, its reconcile may return."""
    pytest.importorskip("ninja")
    from ninja import NinjaAPI, Schema

    from django_idempotency.ninja import idempotent_operation
    from tests.frameworks.ninja.operations import Status

    class Paid(Schema):
        id: int

    api = NinjaAPI(urls_namespace="recovery", docs_url=None, openapi_url=None)

    @api.post("/pay", response={201: Paid, 402: None})
    @idempotent_operation(**leased("registry.ninja"))
    def operation_of_ninja(request: Any) -> Any: ...

    assert path("api/", api.urls)
    snapshot = only("registry.ninja").reconciled(Status(201, {"id": 1, "secret": 2})).snapshot
    assert snapshot is not None
    assert (snapshot.status_code, snapshot.body) == (201, b'{"id": 1}')
    idempotent(**leased("registry.elsewhere"))(view)
    with pytest.raises(IdempotencyConfigurationError, match="return an HttpResponse"):
        only("registry.elsewhere").reconciled(Paid(id=1))  # no operation converts it
