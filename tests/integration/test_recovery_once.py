"""Recovery of functions that `once` decorates."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency import Result, once
from django_idempotency.maintenance import Asked, recover_idempotency_keys
from django_idempotency.models import IdempotencyKey
from tests.integration.leased_urls import HOOKS, reconciled
from tests.leases import Broken, breaks

pytestmark = pytest.mark.django_db


@once(scope="s", key=lambda work: "k", operation="once.pay", lease=60, reconcile=reconciled)
def pay(work: Any, *, operation: Any) -> Any:
    return operation.call("charge", work)


@pytest.fixture(autouse=True)
def _doubt() -> None:
    HOOKS.clear()
    with pytest.raises(Broken):
        pay(breaks)


def recover() -> Asked:
    told: list[Asked] = []
    recover_idempotency_keys(older_than=0, progress=told.append)
    (asked,) = told
    return asked


def test_a_decorated_function_is_found() -> None:
    """Its reconcile returns a Result, which the next call gets."""
    HOOKS["reconcile"] = lambda operation: Result({"id": 1}, replayed=False)
    assert recover().outcome == "completed"
    assert pay(breaks) == {"id": 1}


def test_another_value_is_refused() -> None:
    HOOKS["reconcile"] = lambda operation: {"id": 1}
    assert "return Result(value, replayed=False)" in recover().reason


def test_an_unknown_operation_is_left() -> None:
    """run_once cannot be found."""
    IdempotencyKey.objects.update(operation="gone.pay")
    asked = recover()
    assert (asked.outcome, asked.keys, "run_once without the decorator cannot be found" in asked.reason) == (
        "left",
        1,
        True,
    )
