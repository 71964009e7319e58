"""docs/runbook.md: after a restore of an older database state, no customer is charged twice."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.http import HttpRequest
from django.test import Client
from django.urls import path

from django_idempotency.engine.stores.states import Seen
from django_idempotency.keys import caller_scope
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order

COLUMNS = ["id", "scope", "key", "basket"]


class Gateway(ModuleType):
    """It knows no derived keys: each call is a charge."""

    def __init__(self) -> None:
        super().__init__("shop.gateway")
        self.book: list[dict[str, Any]] = []
        self.answers = True

    def charge(self, amount: int, *, metadata: dict[str, str], idempotency_key: str) -> dict[str, str]:
        charge = {"id": f"ch_{len(self.book)}", "amount": amount, "metadata": metadata}
        self.book.append(charge)
        if not self.answers:
            raise TimeoutError
        return {"id": f"ch_{len(self.book) - 1}"}

    def export(self, file: Path) -> None:
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS)
            writer.writeheader()
            writer.writerows({"id": charge["id"], **charge["metadata"]} for charge in self.book)


class Shop:
    """Twenty clients of three users in front of the documented view, of which the database loses the last ten."""

    def __init__(self, run: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gateway = Gateway()
        monkeypatch.setitem(sys.modules, "shop.gateway", self.gateway)
        sys.modules["shop"].gateway = self.gateway  # type: ignore[attr-defined]
        serve(path("pay/", run("docs/operations.md", "shop/without_the_request.py").pay))
        self.clients = [Client(raise_request_exception=False) for _ in range(3)]
        for number, client in enumerate(self.clients):
            client.force_login(get_user_model().objects.create_user(f"user-{number}"))

    def pay(self, number: int) -> int:
        headers = {"Idempotency-Key": f"key-{number}"}
        basket = {"amount": 100 + number}
        client = self.clients[number % 3]
        return client.post("/pay/", basket, content_type="application/json", headers=headers).status_code

    def restored(self) -> None:
        """Seven are completed and three in doubt at the time of the backup, and ten come later."""
        for number in range(20):
            self.gateway.answers = not 7 <= number < 10
            assert self.pay(number) == (201 if self.gateway.answers else 500)
        self.gateway.answers = True
        IdempotencyKey.objects.filter(key__in=[f"key-{number}" for number in range(10, 20)]).delete()
        Order.objects.filter(amount__gte=110).delete()
        assert (Order.objects.count(), len(self.gateway.book)) == (7, 20)


@pytest.fixture
def shop(run: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(run, serve, monkeypatch)


def tenant_and_caller(request: HttpRequest) -> str:
    return f"acme:{caller_scope(request)}"


def too_long_to_store(request: HttpRequest) -> str:
    return f"{caller_scope(request)}, {'acting for a tenant ' * 20}"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("scope", [None, tenant_and_caller, too_long_to_store])
def test_each_charge_gets_its_order_without_any_client(
    shop: Shop, run: Any, tmp_path: Path, settings: Any, scope: Any
) -> None:
    """Two clients have retried before the endpoint was closed, and only their first charges are named for a refund."""
    settings.IDEMPOTENCY = {"SCOPE": scope}
    shop.restored()
    assert [shop.pay(10), shop.pay(11)] == [201, 201]
    export = tmp_path / "charges.csv"
    shop.gateway.export(export)
    compare = run("docs/runbook.md", "shop/after_a_restore.py").compare
    for _ in range(2):
        assert compare(export) == [("ch_10", {"id": "ch_20"}), ("ch_11", {"id": "ch_21"})]
    assert lost() == ["half_done"] * 11

    call_command("recover_idempotency_keys", "--older-than=0", verbosity=0)

    assert lost() == []
    assert sorted(Order.objects.values_list("amount", flat=True)) == list(range(100, 120))
    assert [shop.pay(number) for number in range(20)] == [201] * 20
    assert (len(shop.gateway.book), Order.objects.count()) == (22, 20)


@pytest.mark.django_db(transaction=True)
def test_without_the_chapter_the_retries_charge_again(shop: Shop) -> None:
    """The three in doubt, too: this gateway forgets what it is asked to recognize."""
    shop.restored()
    assert [shop.pay(number) for number in range(20)] == [201] * 20
    assert (len(shop.gateway.book), Order.objects.count()) == (33, 20)


@pytest.mark.django_db(transaction=True)
def test_a_charge_whose_key_a_person_answered_is_returned(shop: Shop, run: Any, tmp_path: Path) -> None:
    """No step of the key knows it, and whether it was refunded stands in no table."""
    shop.gateway.answers = False
    assert shop.pay(7) == 500
    shop.gateway.export(tmp_path / "charges.csv")
    IdempotencyKey.objects.update(status="completed", status_code=402, attention_at=None)
    compare = run("docs/runbook.md", "shop/after_a_restore.py").compare
    assert compare(tmp_path / "charges.csv") == [("ch_0", None)]


def lost() -> list[str]:
    """The states of the keys that have no answer."""
    rows = IdempotencyKey.objects.exclude(status="completed")
    return [Seen(row, row.updated_at).state.name for row in rows]
