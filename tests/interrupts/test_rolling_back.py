"""A limit that strikes while an earlier exception is rolled back, and connections that can't be put back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from django_idempotency import TransactionBroken, run_once
from django_idempotency.engine.stores.transactions import atomically
from tests.shopapp.models import Order
from tests.strikes import Limit, struck_at

pytestmark = pytest.mark.django_db(transaction=True)


def place(key: str = "k") -> None:
    run_once(lambda: Order.objects.create(reference=key).pk, scope="s", key=key, operation="o")


def raises() -> None:
    Order.objects.create(reference="raises")
    raise LookupError


def place_and_raise() -> None:
    run_once(raises, scope="s", key="k", operation="o")


def step_and_raise() -> None:
    """As steps, recovery, cleanup and decisions do it."""
    atomically("default", raises)


EACH = pytest.mark.parametrize("act", [place_and_raise, step_and_raise])


def committed(in_threads: Any) -> list[str]:
    """What another connection sees, after another order."""
    place("later")
    ((references),) = in_threads(1, lambda _: sorted(Order.objects.values_list("reference", flat=True)))
    return list(references)


@EACH
def test_a_limit_during_the_roll_back_leaves_no_transaction_open(act: Callable[[], None], in_threads: Any) -> None:
    with struck_at("ROLLBACK"), pytest.raises(Limit):
        act()
    assert not connection.in_atomic_block
    assert committed(in_threads) == ["later"]


@EACH
def test_a_limit_during_the_roll_back_of_a_savepoint_dooms_the_callers_transaction(
    act: Callable[[], None], in_threads: Any
) -> None:
    """Nobody knows any more what the savepoint holds, so the caller can't commit it."""

    @transaction.atomic
    def goes_on() -> None:
        with struck_at("ROLLBACK TO SAVEPOINT"), pytest.raises(Limit):
            act()
        Order.objects.create(reference="callers")

    with pytest.raises(TransactionManagementError):
        goes_on()
    assert committed(in_threads) == ["later"]


@pytest.mark.parametrize(
    "is_lost", [False, pytest.param(True, marks=pytest.mark.only_on("postgresql", "mysql"))], ids=["struck", "lost"]
)
def test_with_autocommit_off_the_callers_transaction_is_rolled_back(in_threads: Any, is_lost: bool) -> None:
    """No block of the caller's would do it, and its commit() asks nobody."""

    def work() -> None:
        Order.objects.create(reference="struck")
        connection.connection.close()
        raise LookupError

    transaction.set_autocommit(False)
    Order.objects.create(reference="callers")
    if is_lost:
        with suppress(LookupError):
            run_once(work, scope="s", key="k", operation="o")
    else:
        with struck_at("ROLLBACK TO SAVEPOINT"), suppress(Limit):
            place_and_raise()
    transaction.commit()
    connection.close()
    assert committed(in_threads) == ["later"]


def test_torn_stacks_are_refused(in_threads: Any) -> None:
    """As an inner block leaves them that was interrupted as it began, by a limit which the work catches."""

    def work() -> str:
        Order.objects.create(reference="torn")
        connection.savepoint_ids.append("interrupted")
        return "ordered"

    with pytest.raises(TransactionBroken, match="interrupted one of its atomic"):
        run_once(work, scope="s", key="k", operation="o")
    assert committed(in_threads) == ["later"]
