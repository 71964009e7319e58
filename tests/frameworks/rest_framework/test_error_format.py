"""Refusals in the format of the project's EXCEPTION_HANDLER."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import path

pytest.importorskip("rest_framework")
from rest_framework.decorators import api_view
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import Idempotency, get_operation, idempotent
from django_idempotency.rest_framework import IdempotencyMixin, RequestRefused
from tests.shopapp.models import Order
from tests.views import creates, view_class

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.frameworks.rest_framework.test_error_format"),
]
STANDARDIZED = "drf_standardized_errors.handler.exception_handler"
GIVEN: list[Exception] = []
MEANWHILE: list[Any] = []


def creates_or_fails(request: Any) -> Any:
    if request.data.get("amount") == "wrong":
        raise ValidationError({"amount": ["Wrong."]})
    return creates()(request)


def pays(request: Any) -> Any:
    get_operation(request).call("charge", lambda: MEANWHILE.append(post("/leased/")))
    return Response(status=201)


@api_view(["POST"])
@idempotent(mismatch_status=409)
def function(request: Any) -> Any:
    return Response({}, status=201)


Secret = view_class(IdempotencyMixin, APIView, post=creates_or_fails, idempotency=Idempotency(store_body=False))
Leased = view_class(IdempotencyMixin, APIView, post=pays, idempotency=Idempotency(lease=timedelta(minutes=2)))
urlpatterns = [
    path("orders/", view_class(IdempotencyMixin, APIView, post=creates_or_fails).as_view()),
    path("secret/", Secret.as_view()),
    path("leased/", Leased.as_view()),
    path("function/", function),
    path("plain/", idempotent(creates())),
]


def told(error: Exception, context: Any) -> Response | None:
    """A handler that answers only what it knows."""
    assert sys.exc_info()[1] is error  # what logger.exception() would show
    GIVEN.append(error)
    return None


@pytest.fixture(autouse=True)
def _own_format(settings: Any) -> None:
    pytest.importorskip("drf_standardized_errors")
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": STANDARDIZED}
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": "django_idempotency.rest_framework.error_response"}
    GIVEN.clear()
    MEANWHILE.clear()


def post(url: str, data: Any = None, key: str | None = "k") -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    client = Client(raise_request_exception=False)  # its handler reports a pause to Django as an exception
    return client.post(url, data or {}, content_type="application/json", headers=headers)


def mismatched() -> Any:
    post("/orders/", {"amount": 1})
    return post("/orders/", {"amount": 2})


def mismatched_function() -> Any:
    post("/function/", {"amount": 1})
    return post("/function/", {"amount": 2})


def not_stored() -> Any:
    post("/secret/")
    return post("/secret/")


def in_flight() -> Any:
    post("/leased/")
    return MEANWHILE[0]


Send = Callable[[], Any]
REFUSALS: dict[str, tuple[Send, int]] = {
    "missing-key": (lambda: post("/orders/", key=None), 400),
    "invalid-key": (lambda: post("/orders/", key="a,b"), 400),
    "already-used": (mismatched, 422),
    "response-not-stored": (not_stored, 409),
    "in-progress": (in_flight, 409),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_each_refusal_has_the_format_of_the_views_own_errors(code: str) -> None:
    """As drf-standardized-errors makes them, with our code and in the view's content type."""
    send, status = REFUSALS[code]
    refused, own = send(), post("/orders/", {"amount": "wrong"}, key="another")
    assert (refused.status_code, refused["Content-Type"]) == (status, own["Content-Type"])
    assert refused.json().keys() == own.json().keys()
    assert [error["code"] for error in refused.json()["errors"]] == [code]
    assert refused.json()["errors"][0].keys() == own.json()["errors"][0].keys()
    assert refused["Idempotency-Replayed"] == "false"


def test_a_decorated_function_has_it_too() -> None:
    """And the status that the endpoint has chosen."""
    refused = mismatched_function()
    assert (refused.status_code, refused.json()["type"]) == (409, "client_error")


def test_retry_after_stays() -> None:
    """Of a request that is still running."""
    assert int(in_flight()["Retry-After"]) >= 1


def test_a_pause_is_a_server_error_of_that_format(settings: Any) -> None:
    """503, with the seconds to wait."""
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "PAUSED": True}
    refused = post("/orders/")
    assert (refused.status_code, refused.json()["type"], refused["Retry-After"]) == (503, "server_error", "60")


def test_the_frameworks_own_handler_tells_the_text(settings: Any) -> None:
    """Without a handler of the project."""
    settings.REST_FRAMEWORK = {}
    refused = post("/orders/", key=None)
    assert (refused.status_code, [*refused.json()], refused["Content-Type"]) == (400, ["detail"], "application/json")


def test_a_view_of_plain_django_keeps_problem_details() -> None:
    """It has no handler."""
    refused = post("/plain/", key=None)
    assert (refused.json()["code"], refused["Content-Type"]) == ("missing-key", "application/problem+json")


def test_a_handler_that_does_not_know_the_exception_leaves_problem_details(settings: Any) -> None:
    """It gets the problem with the exception."""
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": f"{__name__}.told"}
    refused = mismatched()
    assert (refused.status_code, refused.json()["code"]) == (422, "already-used")
    assert refused["Idempotency-Replayed"] == "false"
    (given,) = GIVEN
    assert isinstance(given, RequestRefused)
    assert (given.problem.meaning, given.get_codes()) == ("look-up", "already-used")


@pytest.mark.django_db(transaction=False)
@pytest.mark.usefixtures("atomic_requests")
def test_a_refusal_does_not_doom_the_transaction_around_it() -> None:
    """The handler marks each transaction of ATOMIC_REQUESTS for rollback, and nothing has been written."""
    assert post("/orders/", key=None).status_code == 400
    assert not connection.needs_rollback
    assert post("/orders/").status_code == 201
    assert Order.objects.count() == 1


def test_the_projects_own_function_gets_the_frameworks_request(settings: Any) -> None:
    """As its other functions do."""
    seen: list[Any] = []

    def own(request: Any, problem: Any) -> HttpResponse:
        seen.append((request.query_params.dict(), request.user.is_authenticated))
        return HttpResponse(status=problem.status)

    settings.IDEMPOTENCY = {"ERROR_RESPONSE": own}
    assert post("/orders/?a=1", key=None).status_code == 400
    assert seen == [({"a": "1"}, False)]
