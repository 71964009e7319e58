"""Work for `run_once`, which notes that it has run."""

from __future__ import annotations

from typing import Any

from django.db import connection

from django_idempotency import (
    Operation,
)
from tests.shopapp.models import Order

RUNS: list[Any] = []
COMMITS = {
    "postgresql": "SELECT 1; COMMIT",
    "mysql": "ALTER TABLE shopapp_ledger COMMENT = 'DDL commits'",
    "sqlite": "SELECT 1; -- executescript commits",
}


def place(*args: Any) -> Order:
    RUNS.append(args)
    return Order.objects.create(reference="placed")


def breaks(*args: Any) -> None:
    RUNS.append(args)
    Order.objects.create(reference="broken")
    raise ValueError("it broke")


def charge_and_place(operation: Operation) -> Any:
    """One charge, then one order."""
    RUNS.append(operation.attempt)
    charge = operation.call("charge", lambda: {"id": operation.derive_key("charge")})
    return {"order": operation.write("order", place).pk, **charge}


def commit() -> None:
    """As a vendored SQL script does, or DDL."""
    sql = COMMITS[connection.vendor]
    with connection.cursor() as cursor:
        cursor.executescript(sql) if connection.vendor == "sqlite" else cursor.execute(sql)
