"""A body that is something else than its content type says, for a view that reads it all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from django_idempotency import get_operation, idempotent
from tests.leases import Broken
from tests.shopapp.models import Order

pytest.importorskip("rest_framework")
pytest.importorskip("ninja")
from ninja import NinjaAPI, Schema
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.serializers import IntegerField, Serializer
from rest_framework.views import APIView

from django_idempotency.ninja import idempotent_operation
from django_idempotency.rest_framework import IdempotencyMixin
from tests.views import view_class

FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
NAMES = ("reference", "amount")
HIDDEN = '{"x":"&csrfmiddlewaretoken=","reference":"r","amount":%s,"y":"&"}'
DECOY = '{"x":"&reference=r&amount=1&","reference":"r","amount":%s}'
PART = '\r\nContent-Disposition: form-data; name=%s;",\r\n\r\n'
IN_PARTS = (
    '{"x":"--b' + PART % "csrfmiddlewaretoken" + '"reference":"r","amount":%s,"y":"--b' + PART % "a" + '"z":"--b--"}'
).replace("\r\nContent", "Content")
CHARGED: list[int] = []


def reads_json(request: Any) -> HttpResponse:
    return JsonResponse({"amount": json.loads(request.body)["amount"]}, status=201)


def pays(request: HttpRequest) -> HttpResponse:
    data, operation = json.loads(request.body), get_operation(request)
    operation.call("charge", lambda: CHARGED.append(data["amount"]))
    if data.get("fail"):
        raise Broken
    operation.write("order", lambda: Order.objects.create(amount=data["amount"]).pk)
    return HttpResponse(status=201)


class Pay(Schema):
    amount: int


def api(**options: Any) -> Any:
    made = NinjaAPI(urls_namespace=f"disguised {options}", docs_url=None, openapi_url=None)

    @made.post("")
    @idempotent_operation(**options)
    def pay(request: HttpRequest, data: Pay) -> Any:
        return HttpResponse(str(data.amount), status=201)

    return made.urls


class Item(Serializer):  # type: ignore[type-arg]
    amount = IntegerField()


def reads_a_list(request: Any) -> Response:
    items = Item(data=request.data, many=True)
    items.is_valid(raise_exception=True)
    return Response([dict(item) for item in items.validated_data], status=201)


class Signed(BaseAuthentication):
    """Reads the body, as those do that verify a signature of it."""

    def authenticate(self, request: Any) -> None:
        assert request._request.body


raw = view_class(IdempotencyMixin, APIView, post=lambda request: reads_json(request._request))
signed = type("Verified", (raw,), {"authentication_classes": [Signed]})
listed = view_class(IdempotencyMixin, APIView, post=reads_a_list, idempotency={"fingerprint": NAMES})
urlpatterns = [
    path("plain", idempotent(reads_json)),
    path("plain-names", idempotent(fingerprint=NAMES)(reads_json)),
    path("pays", idempotent(lease=60, on_abandoned="retry")(pays)),
    path("ninja", api()),
    path("ninja-names", api(fingerprint=NAMES)),
    path("raw", raw.as_view()),
    path("signed", signed.as_view()),
    path("listed", listed.as_view()),
]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


def statuses(url: str, *bodies: str, content_type: str = FORM, method: str = "POST") -> list[int]:
    client, headers = Client(raise_request_exception=False), {"Idempotency-Key": "k"}
    sent = [client.generic(method, url, body, content_type=content_type, headers=headers) for body in bodies]
    return [answer.status_code for answer in sent]


@pytest.mark.parametrize("body", [HIDDEN, DECOY], ids=["hidden", "decoy"])
@pytest.mark.parametrize("url", ["/plain", "/plain-names", "/ninja", "/ninja-names", "/raw"])
def test_json_in_a_form_is_compared_as_a_whole(url: str, body: str) -> None:
    assert statuses(url, body % 1, body % 100) == [201, 422]


def test_nobody_gets_more_than_was_charged() -> None:
    CHARGED.clear()
    assert statuses("/pays", HIDDEN % '1,"fail":1', HIDDEN % 100) == [500, 422]
    assert (CHARGED, Order.objects.exists()) == ([1], False)


@pytest.mark.parametrize(("url", "method"), [("/ninja", "POST"), ("/signed", "POST"), ("/plain", "PATCH")])
def test_json_in_a_multipart_form_is_compared_as_a_whole(url: str, method: str) -> None:
    found = statuses(url, IN_PARTS % 1, IN_PARTS % 100, content_type=MULTIPART, method=method)
    assert found == [201, 422]


def test_the_items_of_a_list_are_chosen_by_their_names() -> None:
    """Also beside a field that no serializer reads."""
    assert statuses("/listed", *(f"amount=1&[0]amount={amount}" for amount in (1, 1, 100))) == [201, 201, 422]
