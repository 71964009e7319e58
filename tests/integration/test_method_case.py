"""A middleware may set the method in lower case. `View.dispatch` takes any case, so the protection does too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey
from django_idempotency.views import IdempotencyMixin
from tests.http import replayed, same
from tests.shopapp.models import Order


def overridden(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """A middleware that takes the method from a header, as it is written there."""

    def middleware(request: HttpRequest) -> Any:
        request.method = request.headers.get("X-Method", request.method)
        return get_response(request)

    return middleware


class Mixin(IdempotencyMixin, View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=405)

    def patch(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"id": Order.objects.create().pk}, status=201)


class Handler(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=405)

    @method_decorator(idempotent)
    def patch(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"id": Order.objects.create().pk}, status=201)


class Asynchronous(View):
    @idempotent
    async def patch(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"id": (await Order.objects.acreate()).pk}, status=201)


@csrf_exempt
@idempotent
def function(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": Order.objects.create().pk}, status=201)


VIEWS = {
    "mixin": csrf_exempt(Mixin.as_view()),
    "handler": csrf_exempt(Handler.as_view()),
    "asynchronous": csrf_exempt(Asynchronous.as_view()),
    "function": function,
}
urlpatterns = [path(name, view) for name, view in VIEWS.items()]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.test_method_case")]


@pytest.fixture(autouse=True)
def _overridden(settings: Any) -> None:
    settings.MIDDLEWARE = ["tests.integration.test_method_case.overridden"]


@pytest.mark.parametrize("name", VIEWS)
def test_a_method_in_lower_case_is_protected(client: Client, key: str, name: str) -> None:
    """The retry, in upper case or not, gets the first answer."""
    answers = [
        client.post(f"/{name}", headers={"Idempotency-Key": key, "X-Method": method})
        for method in ("patch", "patch", "PATCH")
    ]
    assert [replayed(answer) for answer in answers] == ["false", "true", "true"]
    assert same(answers[0], answers[2])
    assert Order.objects.count() == 1
    assert IdempotencyKey.objects.get().operation == f"PATCH {name}"


@pytest.mark.parametrize("name", ["mixin", "handler", "asynchronous"])
def test_a_safe_method_in_lower_case_passes(client: Client, key: str, name: str) -> None:
    """Nothing is claimed, and nothing runs."""
    response = client.post(f"/{name}", headers={"Idempotency-Key": key, "X-Method": "get"})
    assert (response.status_code, replayed(response)) == (405, None)
    assert not IdempotencyKey.objects.exists()


def test_a_request_without_a_method_passes() -> None:
    """As one that a test has made by hand."""
    assert replayed(function(HttpRequest())) is None
