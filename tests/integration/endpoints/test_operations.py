"""The declaration of a stored operation, found by its name."""

from __future__ import annotations

from sys import modules
from typing import Any

import pytest
from django.http import HttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.test import override_settings
from django.urls import path
from django.utils.translation import gettext_lazy
from django.views import View

from django_idempotency import idempotent, once
from django_idempotency.endpoints.operations import Operations, Recoverable, Unrecoverable
from django_idempotency.views import IdempotencyMixin


def view(request: Any) -> HttpResponse:
    return HttpResponse()


def ask(operation: Any) -> None: ...


def ask_otherwise(operation: Any) -> None: ...


def reason(found: Recoverable | Unrecoverable) -> str:
    assert isinstance(found, Unrecoverable)
    return found.reason


def found(operations: Operations, name: str) -> Recoverable:
    declared = operations.find(name)
    assert isinstance(declared, Recoverable), declared
    return declared


def with_patterns(urlconf: Any, *patterns: Any) -> str:
    """A URLconf of these patterns."""
    name: str = urlconf()
    vars(modules[name])["urlpatterns"] = list(patterns)
    return name


class TestViews:
    def test_by_method_and_route(self, urlconf: Any) -> None:
        """And asked once: the URLconf is read once for a run."""
        operations = Operations(urlconf(pay=idempotent(lease=60, reconcile=ask)(view)))
        assert found(operations, "POST pay").reconcile is ask
        assert operations.find("POST pay") is operations.find("POST pay")
        assert reason(operations.find("PUT pay")).startswith("no view of the URLconf and no imported @once function")

    def test_by_a_name_of_its_own(self, urlconf: Any) -> None:
        operations = Operations(urlconf(pay=idempotent(lease=60, reconcile=ask, operation="charge")(view)))
        assert found(operations, "charge").options.lease_seconds == 60

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, "its view has no lease"),
            ({"lease": 60}, "no reconcile: it waits for the next retry of the client, or for a person"),
            ({"lease": 60, "on_abandoned": "hold"}, "on hold without reconcile: a person decides"),
        ],
    )
    def test_what_cannot_be_asked(self, urlconf: Any, options: Any, expected: str) -> None:
        assert reason(Operations(urlconf(pay=idempotent(**options)(view))).find("POST pay")) == expected

    def test_one_name_for_two_views(self, urlconf: Any) -> None:
        """They may share a reconcile; otherwise it is unknown whose key it is."""
        first, same, other = (
            idempotent(lease=60, reconcile=asked, operation="charge")(view) for asked in (ask, ask, ask_otherwise)
        )
        assert found(Operations(urlconf(a=first, b=same)), "charge").reconcile is ask
        assert "different reconcile" in reason(Operations(urlconf(a=first, b=other)).find("charge"))

    def test_a_view_that_decides_for_each_request(self, urlconf: Any) -> None:
        """There is no request to decide by."""

        class Dynamic(IdempotencyMixin, View):
            idempotency = {"lease": 60, "reconcile": ask}

            def post(self, request: Any) -> Any: ...

            def get_idempotency_options(self) -> Any: ...

        assert "for each request" in reason(Operations(urlconf(pay=Dynamic.as_view())).find("POST pay"))

    def test_a_translated_route(self, urlconf: Any) -> None:
        """A key has the name of its operation in the language of its client."""
        urlconf = urlconf(x=idempotent(lease=60, reconcile=ask)(view))
        from sys import modules

        from django.urls import clear_url_caches, path

        modules[urlconf].urlpatterns = [path(gettext_lazy("Monday"), idempotent(lease=60, reconcile=ask)(view))]  # type: ignore[attr-defined]
        clear_url_caches()
        with override_settings(LANGUAGES=[("en", "English"), ("de", "Deutsch")]):
            assert found(Operations(urlconf), "POST Monday").reconcile is ask
            assert found(Operations(urlconf), "POST Montag").reconcile is ask
        with override_settings(USE_I18N=False):
            assert "no view" in reason(Operations(urlconf).find("POST Montag"))

    def test_a_response_is_rendered(self, urlconf: Any) -> None:
        """Before it is stored."""
        declared = found(Operations(urlconf(pay=idempotent(lease=60, reconcile=ask)(view))), "POST pay")
        template: Any = engines["django"].from_string("paid {{ amount }}")
        late = SimpleTemplateResponse(template, {"amount": 5}, status=201)
        snapshot = declared.finished(late).snapshot
        assert (snapshot.status_code, snapshot.body) == (201, b"paid 5")


def test_functions_of_once() -> None:
    """By the operation; the same function may be decorated again."""
    for asked in (ask_otherwise, ask):

        @once(scope="s", key=lambda: "k", operation="test.once", lease=60, reconcile=asked)
        def work(*, operation: Any) -> None: ...

    assert found(Operations(), "test.once").reconcile is ask


def test_the_rest_framework(urlconf: Any) -> None:
    """Without a client to negotiate with, the view's JSON renderer is used, or the framework's."""
    pytest.importorskip("rest_framework")
    from rest_framework.decorators import api_view, renderer_classes
    from rest_framework.renderers import BrowsableAPIRenderer, JSONRenderer
    from rest_framework.response import Response

    class Hal(JSONRenderer):
        media_type = "application/hal+json"

    protected = idempotent(lease=60, reconcile=ask)(view)
    hal = api_view(["POST"])(renderer_classes([BrowsableAPIRenderer, Hal])(protected))
    html = api_view(["POST"])(renderer_classes([BrowsableAPIRenderer])(protected))
    operations = Operations(urlconf(hal=hal, html=html))
    for name, media_type in (("hal", "application/hal+json"), ("html", "application/json")):
        snapshot = found(operations, f"POST {name}").finished(Response({"id": 1}, status=201)).snapshot
        assert (snapshot.status_code, snapshot.body) == (201, b'{"id":1}')
        assert snapshot.header("Content-Type") == media_type
    assert found(operations, "POST hal").finished(HttpResponse("x")).snapshot.body == b"x"


def test_django_ninja(urlconf: Any) -> None:
    """What an operation may return, its reconcile may return."""
    pytest.importorskip("ninja")
    from ninja import NinjaAPI, Schema

    from django_idempotency.ninja import idempotent_operation
    from tests.ninja.api_urls import Status

    class Paid(Schema):
        id: int

    api = NinjaAPI(urls_namespace="recovery", docs_url=None, openapi_url=None)

    @api.post("/pay", response={201: Paid, 402: None})
    @idempotent_operation(lease=60, reconcile=ask)
    def pay(request: Any) -> Any: ...

    declared = found(Operations(with_patterns(urlconf, path("api/", api.urls))), "POST api/pay")
    snapshot = declared.finished(Status(201, {"id": 1, "secret": 2})).snapshot
    assert (snapshot.status_code, snapshot.body) == (201, b'{"id": 1}')
