"""Options that are `async def`: a coroutine that nobody awaits is true, and would allow everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import Idempotency, IdempotencyConfigurationError, idempotent
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.integration.test_async_options")]


async def is_allowed(request: HttpRequest) -> bool:
    """Asks the database, as a check of a permission would."""
    return "X-Denied" not in request.headers and await Order.objects.aexists()


class Answer:
    async def __call__(self, request: Any) -> Any:
        return "x"


@csrf_exempt
@idempotent(may_replay=is_allowed)
def plain(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": Order.objects.create().pk}, status=201)


@csrf_exempt
@idempotent(may_replay=lambda request: is_allowed(request))
async def asynchronous(request: HttpRequest) -> HttpResponse:
    order = await Order.objects.acreate()
    return JsonResponse({"id": order.pk}, status=201)


urlpatterns = [path("plain", plain), path("async", asynchronous)]


@pytest.mark.parametrize("url", ["/plain", "/async"])
def test_an_asynchronous_may_replay_is_awaited(client: Client, url: str) -> None:
    """Not awaited, it would show each response to everybody."""

    def send(**headers: str) -> tuple[int, str]:
        answer = client.post(url, headers={"Idempotency-Key": "k", **headers})
        return answer.status_code, answer.headers["Idempotency-Replayed"]

    assert [send(), send(), send(**{"X-Denied": "1"})] == [(201, "false"), (201, "true"), (403, "false")]


@pytest.mark.parametrize("name", ["scope", "key", "record"])
@pytest.mark.parametrize("given", [is_allowed, Answer()])
def test_other_asynchronous_options_are_refused(name: str, given: Callable[..., Any]) -> None:
    """Where they are declared."""
    with pytest.raises(IdempotencyConfigurationError, match=rf"{name}=.*: it is not awaited: give a def function\."):
        Idempotency(**{name: given})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["KEY_VALIDATOR", "ERROR_RESPONSE"])
def test_asynchronous_settings_are_refused(client: Client, settings: Any, name: str) -> None:
    """On the first request at the latest."""
    settings.IDEMPOTENCY = {name: is_allowed}
    with pytest.raises(IdempotencyConfigurationError, match=rf"{name}.*: it is not awaited: give a def function\."):
        client.post("/plain", headers={"Idempotency-Key": "k"})
