"""A COMMIT that fails under the REST framework, whose exception handler responds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rest_framework")

from django.db import IntegrityError, connection
from django.urls import path
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.rest_framework import IdempotencyMixin
from tests.http import replayed
from tests.shopapp.models import Line

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


def insert(request: Any) -> Response:
    Line.objects.create(order_id=9_999_999)
    return Response(status=201)


class Inserting(IdempotencyMixin, APIView):
    def post(self, request: Any) -> Response:
        return insert(request)


class Bare(APIView):
    def post(self, request: Any) -> Response:
        return insert(request)


urlpatterns = [
    path("mixin", Inserting.as_view()),
    path("decorator", api_view(["POST"])(idempotent(insert))),
    path("bare", Bare.as_view()),
]


def answering(error: Exception, context: Any) -> Response | None:
    return Response(status=503) if isinstance(error, IntegrityError) else exception_handler(error, context)


@pytest.fixture(autouse=True)
def _answered(settings: Any) -> None:
    if connection.vendor == "mysql":
        pytest.skip("MySQL checks foreign keys at each statement")
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": f"{__name__}.answering"}


@pytest.mark.parametrize("name", ["mixin", "decorator"])
def test_the_answer_to_a_failed_commit_says_that_it_is_no_replay(post: Callable[..., Any], name: str) -> None:
    """Without the header, a client would think that no key was honoured. The key is free, and a retry runs."""
    for _ in range(2):
        response = post(f"/{name}")
        assert (response.status_code, replayed(response)) == (503, "false")
    assert (Line.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


def test_an_unprotected_view_says_nothing(post: Callable[..., Any]) -> None:
    """It honours no key, and Django itself may run its transaction."""
    assert replayed(post("/bare")) is None
