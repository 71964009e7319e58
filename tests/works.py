"""Work for `run_once`, which notes that it has run."""

from __future__ import annotations

from typing import Any

from django_idempotency import (
    Operation,
)
from tests.shopapp.models import Order

RUNS: list[Any] = []


def place(*args: Any) -> Order:
    RUNS.append(args)
    return Order.objects.create(reference="placed")


def breaks(*args: Any) -> None:
    RUNS.append(args)
    Order.objects.create(reference="broken")
    raise ValueError("it broke")


def pay(operation: Operation) -> Any:
    """One charge, then one order."""
    RUNS.append(operation.attempt)
    charge = operation.call("charge", lambda: {"id": operation.derive_key("charge")})
    return {"order": operation.write("order", place).pk, **charge}
