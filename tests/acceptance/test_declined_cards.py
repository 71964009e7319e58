"""The recovery of docs/operations.md: a result that a person has recorded in another shape is no declined card."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.test import Client
from django.urls import path

from django_idempotency.maintenance import half_done, in_doubt, record_outcome, recover_idempotency_keys
from tests.shopapp import models


@pytest.mark.django_db
def test_a_recorded_result_of_another_shape_is_not_a_declined_card(
    run: Any, serve: Any, client: Client, gateway: Any
) -> None:
    """The customer has paid. The key stays with those that need attention until the result is corrected."""
    sys.modules["shop"].gateway = gateway  # type: ignore[attr-defined]
    serve(path("pay/", run("docs/operations.md", "shop/without_the_request.py").pay))
    client.raise_request_exception = False
    charge = gateway.charge

    def loses_the_answer(*args: Any, **kwargs: Any) -> None:
        charge(*args, **kwargs)
        raise TimeoutError

    def sent() -> Any:
        return client.post("/pay/", {"amount": 4990}, content_type="application/json", headers={"Idempotency-Key": "k"})

    gateway.charge = loses_the_answer
    assert sent().status_code == 500
    record_outcome(in_doubt().get(), "charge", "ch_1", by="ada", reason="t")
    assert recover_idempotency_keys(older_than=0).failed == 1
    assert sent().status_code == 500
    record_outcome(half_done().get(), "charge", {"id": "ch_1"}, by="ada", reason="t")
    assert sent().status_code == 201
    assert (len(gateway.books), models.Order.objects.count()) == (1, 1)
