"""docs/incidents.md: after a restore of an older database state, no customer is charged twice."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.http import HttpRequest
from django.test import Client
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.engine.stores.states import Seen
from django_idempotency.keys import caller_scope
from django_idempotency.maintenance import remember_calls
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order

COLUMNS = ["id", "scope", "operation", "key", "basket"]


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
        module = run("docs/operations.md", "shop/without_the_request.py")
        bill = idempotent(operation="pay a bill", lease=120, reconcile=module.finish)(module.pay.__wrapped__)
        serve(path("pay/", module.pay), path("bill/", bill))
        self.clients = [Client(raise_request_exception=False) for _ in range(3)]
        for number, client in enumerate(self.clients):
            client.force_login(get_user_model().objects.create_user(f"user-{number}"))

    def pay(self, number: int, route: str = "pay") -> int:
        headers = {"Idempotency-Key": f"key-{number}"}
        basket = {"amount": 100 + number}
        client = self.clients[number % 3]
        return client.post(f"/{route}/", basket, content_type="application/json", headers=headers).status_code

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
    compare = run("docs/incidents.md", "shop/after_a_restore.py").compare
    for _ in range(2):
        assert compare(export) == [("ch_10", {"id": "ch_20"}), ("ch_11", {"id": "ch_21"})]
    assert lost() == ["half_done"] * 11

    call_command("recover_idempotency_keys", "--older-than=0", verbosity=0)

    assert lost() == []
    assert sorted(Order.objects.values_list("amount", flat=True)) == list(range(100, 120))
    assert [shop.pay(number) for number in range(20)] == [201] * 20
    assert (len(shop.gateway.book), Order.objects.count()) == (22, 20)


@pytest.mark.django_db(transaction=True)
def test_of_two_endpoints_with_one_gateway_each_gets_its_own_charges(shop: Shop, run: Any, tmp_path: Path) -> None:
    """The whole export is entered: each charge names its operation, and becomes an order of no other one."""
    sent = [(number, "bill" if number % 2 else "pay") for number in range(6)]
    assert [shop.pay(*each) for each in sent] == [201] * 6
    IdempotencyKey.objects.all().delete()
    Order.objects.all().delete()
    shop.gateway.export(tmp_path / "charges.csv")
    assert run("docs/incidents.md", "shop/after_a_restore.py").compare(tmp_path / "charges.csv") == []
    call_command("recover_idempotency_keys", "--older-than=0", verbosity=0)
    completed = IdempotencyKey.objects.filter(status="completed")
    assert Counter(completed.values_list("operation", flat=True)) == {"pay a basket": 3, "pay a bill": 3}
    assert [shop.pay(*each) for each in sent] == [201] * 6
    assert (Order.objects.count(), len(shop.gateway.book)) == (6, 6)


@pytest.mark.django_db
@pytest.mark.parametrize("missing", ["scope", "operation", "key"])
def test_a_charge_that_does_not_say_whose_it_is_is_refused(missing: str) -> None:
    """Its key would be one that no retry finds, and the retry would charge again."""
    known = {"scope": "s", "operation": "pay a basket", "key": "k"} | {missing: ""}
    with pytest.raises(ValueError, match=f"^{missing}='': fill it in, as the endpoint of this charge stores it.$"):
        remember_calls(**known, results={"charge": {"id": "ch_1"}})
    assert not IdempotencyKey.objects.exists()


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
    compare = run("docs/incidents.md", "shop/after_a_restore.py").compare
    assert compare(tmp_path / "charges.csv") == [("ch_0", None)]


def lost() -> list[str]:
    """The states of the keys that have no answer."""
    rows = IdempotencyKey.objects.exclude(status="completed")
    return [Seen(row, row.updated_at).state.name for row in rows]
