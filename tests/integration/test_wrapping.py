"""One engine for `def` and `async def`. Requests to asynchronous views are in tests/concurrency/test_async.py."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse

from django_idempotency import IdempotencyConfigurationError, idempotent


async def asynchronous(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@pytest.mark.django_db
def test_a_synchronous_view_that_returns_a_coroutine_is_refused(rf: Any) -> None:
    """Nothing is committed for it."""

    @idempotent(scope=lambda request: "s")
    def wrapper(request: HttpRequest) -> Any:
        return asynchronous(request)

    with pytest.raises(IdempotencyConfigurationError, match="asynchronous"):
        wrapper(rf.post("/", headers={"Idempotency-Key": "k"}))
