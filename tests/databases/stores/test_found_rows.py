"""MySQL and MariaDB without Django's FOUND_ROWS: an UPDATE counts only rows that it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_idempotency import Operation, run_once
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.leases import Broken, breaks

pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _without_found_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A `client_flag` of the project takes the place of Django's."""
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "client_flag", 0)
    connection.close()
    yield
    connection.close()


def test_the_same_resource_again_is_no_lost_lease() -> None:
    """In the same attempt and in the next."""

    def work(operation: Operation) -> int:
        for _ in range(2):
            operation.refer_to("order", "59")
        if operation.attempt == 1:
            raise Broken
        return operation.attempt

    with pytest.raises(Broken):
        run_once(work, scope="s", key="k", operation="pay", lease=60)
    assert run_once(work, scope="s", key="k", operation="pay", lease=60).value == 2
    assert IdempotencyKey.objects.values_list("resource_type", "resource_id").get() == ("order", "59")


def test_a_call_that_reconcile_has_made_in_vain_can_be_made_again() -> None:
    """In the same attempt: the step changes nothing but its attempt."""

    def ask(operation: Operation) -> None:
        with pytest.raises(Broken):
            operation.call("refund", breaks)

    of: dict[str, Any] = {"scope": "s", "key": "k", "operation": "pay", "lease": 60, "on_abandoned": "retry"}
    with pytest.raises(Broken):
        run_once(lambda operation: operation.call("charge", breaks), **of)
    made = run_once(lambda operation: operation.call("refund", lambda: "refunded"), reconcile=ask, **of)
    assert made.value == "refunded"
    assert IdempotencyStep.objects.get(name="refund").attempt == 2
