"""`response.data` of replays and problems, and one request for two calls of a view, as the framework's own tests do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rest_framework")
from django.http import HttpResponse
from django.urls import path
from rest_framework.renderers import JSONRenderer, StaticHTMLRenderer
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_idempotency.rest_framework import IdempotencyMixin
from tests.http import replayed
from tests.shopapp.models import Order
from tests.views import creates, view_class

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.rest_framework.test_data")]


def as_asked(request: Any, order: Order) -> Any:
    match request.query_params.get("as"):
        case "plain":
            return HttpResponse("{", content_type="application/json")
        case "html":
            return Response(f"<p>{order.pk}</p>", content_type="text/html")
        case "nothing":
            return Response(status=204)
    return Response({"id": order.pk, "read": request.data}, status=201)


class Orders(view_class(IdempotencyMixin, APIView, post=creates(then=as_asked))):
    renderer_classes = [JSONRenderer, StaticHTMLRenderer]
    authentication_classes = []


class Silent(Orders):
    parser_classes: Any = []


urlpatterns = [path("orders", Orders.as_view())]


@pytest.mark.parametrize("address", ["/orders", "/orders?as=nothing"])
def test_a_replay_has_the_data_of_the_first_answer(post: Post, address: str) -> None:
    """Read back as JSON. The bytes are those that were sent."""
    first, again = (post(address, {"amount": 1}) for _ in range(2))
    assert (replayed(again), again.content) == ("true", first.content)
    assert again.data == first.data


@pytest.mark.parametrize("address", ["/orders?as=html", "/orders?as=plain"])
def test_a_body_that_is_not_json_has_no_data(post: Post, address: str) -> None:
    """None, as the framework's empty responses have. The view's own response is left as it is."""
    first, again = (post(address) for _ in range(2))
    assert (replayed(again), again.data, again.content) == ("true", None, first.content)
    assert hasattr(first, "data") is (address == "/orders?as=html")


def test_a_problem_has_data(post: Post) -> None:
    """What it says."""
    post("/orders", {"amount": 1})
    refused = post("/orders", {"amount": 2})
    assert (refused.status_code, refused.data) == (422, json.loads(refused.content))
    assert refused.data["code"] == "already-used"


def test_a_view_without_a_parser_for_json_has_data_too(rf: Any) -> None:
    """Of a problem, which is JSON."""
    refused = Silent.as_view()(rf.post("/"))
    assert (refused.status_code, refused.data["code"]) == (400, "missing-key")


@pytest.mark.parametrize(
    ("data", "content_type"),
    [('{"a": 1}', "application/json"), ("a=1", "application/x-www-form-urlencoded"), ("", "application/json")],
)
def test_one_request_may_be_handed_to_a_view_twice(data: str, content_type: str) -> None:
    """The second call replays, whatever the first has read."""
    request = APIRequestFactory().post("/", data, content_type=content_type, headers={"Idempotency-Key": "k"})
    first, again = (Orders.as_view()(request) for _ in range(2))
    assert [replayed(first), replayed(again)] == ["false", "true"]
    assert again.data == json.loads(first.content)
