"""docs/runbook.md: after a restore of an older database state, no customer is charged twice."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from django_idempotency import Operation, run_once
from django_idempotency.engine.stores.states import Seen
from django_idempotency.maintenance import remember_calls
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.shopapp.models import Order


class Timeout(Exception):
    """The answer of the gateway is lost."""


class Gateway:
    """It knows no derived keys: each call is a charge."""

    def __init__(self) -> None:
        self.book: list[dict[str, str]] = []
        self.answers = True

    def charge(self, scope: str, key: str) -> dict[str, str]:
        charge = {"id": f"ch_{len(self.book)}", "scope": scope, "key": key}
        self.book.append(charge)
        if not self.answers:
            raise Timeout
        return {"id": charge["id"]}


def pay(gateway: Gateway, number: int) -> Any:
    scope, key = f"user:{number % 3}", f"key-{number}"

    def work(operation: Operation) -> Any:
        charge = operation.call("charge", gateway.charge, scope, key)
        return operation.write("order", lambda: Order.objects.create(reference=charge["id"]).reference)

    return run_once(work, scope=scope, key=key, operation="POST pay/", lease=60, on_abandoned="retry").value


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("remembered", "charges"), [(True, 20), (False, 33)])
def test_twenty_charges_stay_twenty(run: Any, tmp_path: Path, remembered: bool, charges: int) -> None:
    """7 were completed and 3 in doubt at the time of the backup, and 10 came later. Then all clients retry."""
    gateway = Gateway()
    for number in range(20):
        gateway.answers = not 7 <= number < 10
        if gateway.answers:
            pay(gateway, number)
        else:
            with pytest.raises(Timeout):
                pay(gateway, number)
    gateway.answers = True
    IdempotencyKey.objects.filter(key__in=[f"key-{number}" for number in range(10, 20)]).delete()
    Order.objects.filter(reference__in=[f"ch_{number}" for number in range(10, 20)]).delete()
    assert Order.objects.count() == 7
    export = tmp_path / "charges.csv"
    with export.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "scope", "key"])
        writer.writeheader()
        writer.writerows(gateway.book)
    if remembered:
        for _ in range(2):
            by_hand = run("docs/runbook.md", "shop/after_a_restore.py").compare(export)
            assert by_hand == [f"ch_{number}" for number in range(7)]
        assert lost() == ["half_done"] * 13
    answers = [pay(gateway, number) for number in range(20)]
    assert (len(gateway.book), Order.objects.count()) == (charges, 20)
    assert (answers == [f"ch_{number}" for number in range(20)]) == remembered


def lost() -> list[str]:
    """The states of the keys that have no answer."""
    rows = IdempotencyKey.objects.exclude(status="completed")
    return [Seen(row, row.updated_at).state.name for row in rows]


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["completed", "in_progress"])
def test_what_is_completed_or_at_work_is_left_alone(status: Any) -> None:
    row = create_key("k", scope="s", operation="POST pay/", status=status)
    assert remember_calls("s", "POST pay/", "k", {"charge": 1}) is False
    assert (IdempotencyKey.objects.get(), row.steps.count()) == (row, 0)


@pytest.mark.django_db
def test_a_result_that_is_there_stays() -> None:
    """Of a key with two calls, the one in doubt gets its result."""
    row = create_key("k", scope="s", operation="POST pay/", steps={"fee": 1}, in_doubt=["charge"], on_abandoned="hold")
    assert remember_calls("s", "POST pay/", "k", {"fee": 2, "charge": 3}) is True
    results = dict(row.steps.values_list("name", "result"))
    assert results == {"fee": '{"value": 1}', "charge": '{"value": 3}'}
