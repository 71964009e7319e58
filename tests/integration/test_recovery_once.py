"""Recovery of functions that `once` decorates."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency import Result, once
from django_idempotency.maintenance import Asked, recover_idempotency_keys
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
