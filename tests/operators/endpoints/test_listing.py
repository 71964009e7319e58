"""`list_endpoints()`: every unsafe route, what protects it (declared.py), and where it is (routes.py)."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from django_idempotency.checks import check_project
from django_idempotency.endpoints import list_endpoints
from django_idempotency.views import IdempotencyMixin
from tests.operators.endpoints.shop import URLS
from tests.views import answers, view_class


def found(prefix: str, urlconf: str = URLS) -> dict[str, list[str]]:
    """Route to methods, a protected one with a star."""
    listed: dict[str, list[str]] = {}
    for endpoint in list_endpoints(urlconf):
        if endpoint.route.startswith(prefix):
            route = endpoint.route.removeprefix(prefix)
            listed.setdefault(route, []).append(endpoint.method + "*" * endpoint.protected)
    return listed


class TestWalker:
    def test_functions(self) -> None:
        """By decorator, under wrappers; the methods where require_http_methods and its like tell them."""
        assert found("f/") == {
            "bare": ["ANY"],
            "decorated": ["PATCH*", "POST*"],
            "wrapped": ["POST*"],
            "shown": ["POST*"],
            "hidden": ["POST"],
            "three": ["DELETE", "POST*"],
            "both": ["POST"],
            "less": ["POST"],
            "condition": ["POST"],
            "partial": ["POST*"],
            "async": ["POST*"],
            "object": ["PATCH*", "POST*"],
            "above": ["PATCH*", "POST*"],
        }

    def test_classes(self) -> None:
        """By handler, by dispatch, also of a base class, and as a whole."""
        assert found("c/") == {
            "plain": ["POST"],
            "handler": ["POST*", "PUT*", "PATCH*", "DELETE"],
            "limited": ["PUT*"],
            "async": ["POST*", "PUT"],
            "dispatch": ["POST*", "DELETE"],
            "inherits": ["POST*", "DELETE"],
            "whole": ["POST*"],
            "later": ["POST*", "DELETE"],
        }

    def test_a_class_that_answers_in_dispatch(self, urlconf: Any, settings: Any) -> None:
        """It has no handlers, as GraphQL views, and is listed as a function is; a class that answers 405 is not."""
        own = view_class(dispatch=lambda self, request: answers()(request))
        atomic, leased = (
            method_decorator(decorator, name="dispatch")(type("Whole", (own,), {"dispatch": own.dispatch}))
            for decorator in (idempotent, idempotent(lease=60, using="nowhere"))
        )
        views = {
            "own": own,
            "atomic": atomic,
            "leased": leased,
            "none": method_decorator(csrf_exempt, name="dispatch")(view_class()),
        }
        urls = settings.ROOT_URLCONF = urlconf(**{name: cls.as_view() for name, cls in views.items()})
        assert found("", urls) == {"own": ["ANY"], "atomic": ["PATCH*", "POST*"], "leased": ["PATCH*", "POST*"]}
        ids = {message.id.partition(".")[2] for message in check_project(None)}
        assert ids >= {"E002", "W015"}

    def test_the_mixin_of_plain_django(self, urlconf: Any) -> None:
        """The class's options, its initkwargs, None, and a view that decides for each request."""
        Mixed = view_class(IdempotencyMixin, View, post=answers(), put=answers(), idempotency={"ttl": 60})

        class Dynamic(Mixed):
            def get_idempotency_options(self) -> Any: ...

        class Single(Mixed):
            idempotency = None
            post = idempotent(Mixed.post)

        @method_decorator(idempotent(ttl=7), name="dispatch")
        class Whole(Single):
            post = Mixed.post

        urls = urlconf(
            whole=Whole.as_view(),
            mixed=Mixed.as_view(),
            given=Mixed.as_view(idempotency={"ttl": 5}),
            none=Mixed.as_view(idempotency=None),
            dynamic=Dynamic.as_view(),
            single=Single.as_view(),
        )
        assert [
            (e.route, e.options and e.options.ttl_seconds, e.note) for e in list_endpoints(urls) if e.method == "POST"
        ] == [
            ("whole", 7, ""),
            ("mixed", 60, ""),
            ("given", 5, ""),
            ("none", None, ""),
            ("dynamic", 60, "decided for each request"),
            ("single", 86400, ""),
        ]
        assert not any(e.protected for e in list_endpoints(urls) if e.method == "PUT")

    def test_switched_off_is_not_protected(self, settings: Any) -> None:
        """IDEMPOTENCY["ENABLED"] is one setting away from production."""
        settings.IDEMPOTENCY = {"ENABLED": False}
        listed = [endpoint for endpoint in list_endpoints(URLS) if endpoint.route == "f/wrapped"]
        assert [(endpoint.protected, endpoint.note) for endpoint in listed] == [
            (False, "IDEMPOTENCY['ENABLED'] is False")
        ]

    def test_a_function_that_declares_no_methods_names_the_unprotected_ones(self, urlconf: Any) -> None:
        """It may answer them. With `require_POST`, it doesn't."""
        views = {
            "all": idempotent(methods=("POST", "PUT", "PATCH", "DELETE"))(answers()),
            "one": idempotent(methods=("POST",))(answers()),
            "two": idempotent(answers()),
            "post": require_POST(idempotent(answers())),
        }
        notes = {endpoint.route: endpoint.note for endpoint in list_endpoints(urlconf(**views)) if endpoint.protected}
        named = {"one": "DELETE, PATCH, PUT not protected", "two": "DELETE, PUT not protected"}
        assert notes == {"all": "", **named, "post": ""}

    def test_observed_is_not_protected(self, urlconf: Any) -> None:
        """Each retry runs. The stored keys still have their endpoint."""
        (endpoint,) = list_endpoints(urlconf(pay=require_POST(idempotent(observe=True)(answers()))))
        assert (endpoint.protected, endpoint.mode, endpoint.note) == (False, "", "only observed")
        assert endpoint.operation == "POST pay"

    def test_the_rest_framework(self) -> None:
        """Mixin, actions, decorated handlers and @api_view, by view class or action."""
        pytest.importorskip("rest_framework")
        listed = list_endpoints("tests.frameworks.rest_framework.api_urls")
        shown = {
            (e.method, e.view.removeprefix("tests.frameworks.rest_framework.api_urls.")): e.options
            and e.options.ttl_seconds
            for e in listed
        }
        views = ("OrderViewSet", "Decorated", "function")
        assert {named: ttl for named, ttl in shown.items() if named[1].startswith(views)} == {
            ("POST", "OrderViewSet.create"): 3600,
            ("PUT", "OrderViewSet.update"): None,
            ("PATCH", "OrderViewSet.partial_update"): None,
            ("DELETE", "OrderViewSet.destroy"): None,
            ("POST", "OrderViewSet.secret"): 3600,
            ("POST", "OrderViewSet.optional"): 3600,
            ("POST", "OrderViewSet.preview"): None,
            ("POST", "Decorated"): 86400,
            ("PUT", "Decorated"): 86400,
            ("POST", "function"): 86400,
        }
        notes = {e.view.rpartition(".")[2]: e.note for e in listed if e.note}
        assert notes == {
            "update": "only PATCH, POST protected",
            "destroy": "only PATCH, POST protected",
            "Dynamic": "decided for each request",
        }

    def test_a_rest_view_that_may_decide_to_protect_counts_as_unprotected(self, urlconf: Any) -> None:
        """What is not certain is not certified."""
        views = pytest.importorskip("rest_framework.views")
        from django_idempotency.rest_framework import IdempotencyMixin as RestMixin

        class Maybe(view_class(RestMixin, views.APIView, post=answers(), idempotency=None)):
            def get_idempotency_options(self) -> Any:
                return {}

        class ByHandler(Maybe):
            get_idempotency_options = RestMixin.get_idempotency_options
            post = idempotent(Maybe.post)

        listed = list_endpoints(
            urlconf(
                maybe=Maybe.as_view(),
                handler=ByHandler.as_view(),
                none=ByHandler.as_view(http_method_names=["put"]),
            )
        )
        assert [(e.route, e.protected, e.note) for e in listed] == [
            ("maybe", False, "decided for each request"),
            ("handler", True, ""),
        ]
