"""What `reconcile` returns to the retry of a Django Ninja operation."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest
from django.urls import path

pytest.importorskip("ninja")

from ninja import NinjaAPI

from django_idempotency import get_operation
from django_idempotency.ninja import idempotent_operation
from tests.http import replayed
from tests.leases import Broken, breaks

api = NinjaAPI(urls_namespace="reconcile", docs_url=None, openapi_url=None)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


@api.post("/pay")
@idempotent_operation(
    operation="POST pay in Ninja",
    lease=60,
    reconcile=lambda operation: {"paid": operation.in_doubt},
    on_abandoned="hold",
)
def pay(request: HttpRequest) -> dict[str, str]:
    return {"charge": get_operation(request).call("charge", breaks)}


urlpatterns = [path("", api.urls)]


def test_a_value_is_converted_as_if_the_operation_had_returned_it(post: Any) -> None:
    with pytest.raises(Broken):
        post("/pay")
    answers = [post("/pay") for _ in range(2)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"paid": ["charge"]})] * 2
    assert [replayed(answer) for answer in answers] == ["false", "true"]
