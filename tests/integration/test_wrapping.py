"""One engine for `def` and `async def`. Requests to asynchronous views are in tests/concurrency/test_async.py."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse

from django_idempotency import idempotent
from django_idempotency.models import IdempotencyKey


async def asynchronous(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Called:
    def __call__(self, request: HttpRequest) -> Any:
        return None


def nothing(request: HttpRequest) -> Any:
    return None


def forgotten_await(request: HttpRequest) -> Any:
    return asynchronous(request)


@pytest.mark.django_db
@pytest.mark.parametrize("view", [nothing, forgotten_await, Called()])
def test_a_view_without_a_response_is_refused_as_django_does(rf: Any, view: Any) -> None:
    """The same error in the same words, before anything is committed."""
    returned = view(rf.post("/"))
    with pytest.raises(ValueError, match="didn't return an HttpResponse") as django:
        BaseHandler().check_response(returned, view)
    if returned is not None:
        returned.close()  # a coroutine
    with pytest.raises(ValueError, match="didn't return an HttpResponse") as ours:
        idempotent(view)(rf.post("/", headers={"Idempotency-Key": "k"}))
    assert str(ours.value) == str(django.value)
    assert not IdempotencyKey.objects.exists()


@pytest.mark.django_db
def test_an_asynchronous_view_gets_what_its_url_names(rf: Any) -> None:
    """By position and by name, as a synchronous one."""

    @idempotent
    async def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse(f"{args} {kwargs}")

    response = async_to_sync(view)(rf.post("/", headers={"Idempotency-Key": "k"}), 59, shop="x")
    assert response.content == b"(59,) {'shop': 'x'}"
