"""A time limit that strikes as an `atomic()` block begins or ends: what is acknowledged later is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings

from django_idempotency import Operation, TransactionBroken, run_once
from django_idempotency.engine.stores.transactions import atomically
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order
from tests.strikes import Limit, Striking, lines_of

pytestmark = pytest.mark.django_db(transaction=True)
BLOCKS = lines_of(transaction.Atomic.__enter__, transaction.Atomic.__exit__)
LATER = 3


def create(key: str) -> int:
    with transaction.atomic():
        return int(Order.objects.create(reference=key).pk)


def place(key: str) -> None:
    """The view has a block of its own, as `get_or_create` and `bulk_create` have."""
    run_once(partial(create, key), scope="s", key=key, operation="o")


def place_or_raise(key: str) -> None:
    def work() -> None:
        create(key)
        raise LookupError

    run_once(work, scope="s", key=key, operation="o")


def place_or_give_up(key: str) -> None:
    """The view catches the limit, and answers."""

    def work() -> str:
        try:
            create(key)
        except Limit:
            return "time is up"
        return "ordered"

    run_once(work, scope="s", key=key, operation="o")


def write(key: str) -> None:
    def work(operation: Operation) -> None:
        operation.write("order", partial(create, key))

    run_once(work, scope="s", key=key, operation="o", lease=60)


def pass_through(key: str) -> None:
    """What isn't protected, and what turns an exception into a response, runs in a transaction of the package, too."""
    atomically("default", partial(create, key))


def place_unprotected(key: str) -> None:
    """While protection is off, the transaction is the package's, too."""
    with override_settings(IDEMPOTENCY={"ENABLED": False}):
        place(key)


def alone(strike: Callable[[], bool]) -> bool:
    return strike()


def in_callers(strike: Callable[[], bool]) -> bool:
    """The caller catches everything inside its own transaction, and commits that."""
    struck = False
    with suppress(TransactionManagementError), transaction.atomic():
        Order.objects.create(reference="callers")
        struck = strike()
        Order.objects.create(reference="callers")
    return struck


def with_autocommit_off(strike: Callable[[], bool]) -> bool:
    transaction.set_autocommit(False)
    struck = strike()
    if transaction.get_autocommit():  # the connection was closed
        return struck
    transaction.commit()
    transaction.set_autocommit(True)
    return struck


@pytest.mark.parametrize(
    ("act", "around"),
    [
        *((act, alone) for act in (place, place_or_raise, place_or_give_up, write, pass_through, place_unprotected)),
        *((place, around) for around in (in_callers, with_autocommit_off)),
    ],
)
def test_later_operations_are_committed(
    act: Callable[[str], None], around: Callable[[Callable[[], bool]], bool], in_threads: Any
) -> None:
    """An order is there exactly if its key is, and each later operation that was acknowledged has its order."""
    acknowledged, failed = [], []
    for code, line in BLOCKS:
        for which in range(1, 9):
            key = f"{code.co_name}-{line}-{which}"
            if not around(partial(Striking(code, line, which).during, partial(act, key))):
                break
            for number in range(LATER):
                later = f"later-{key}-{number}"
                try:
                    place(later)
                except Exception as error:
                    failed.append(f"{later}: {error!r}")
                else:
                    acknowledged.append(later)

    def kept(_: int) -> tuple[Counter[str], set[str]]:
        completed = IdempotencyKey.objects.filter(status="completed").values_list("key", flat=True)
        return Counter(Order.objects.values_list("reference", flat=True)), set(completed)

    ((orders, keys),) = in_threads(1, kept)
    assert failed == []
    assert [key for key in acknowledged if orders.pop(key) != 1] == []
    assert orders.pop("callers", 0) % 2 == 0
    if act is write:  # a step is committed before its key is completed
        assert orders.keys() >= keys.difference(acknowledged)
    elif act not in (
        place_or_give_up,
        pass_through,
        place_unprotected,
    ):  # which have an answer without an order, or an order without a key
        assert orders.keys() == keys.difference(acknowledged)
    assert len(acknowledged) > 20 * LATER


def test_a_view_that_catches_it_is_not_acknowledged() -> None:
    """Django's stacks are torn: what the view wrote can't be committed any more."""
    ((code, line),) = lines_of(transaction.Atomic.__enter__)[-1:]
    key, tried = "k", Striking(code, line, 2)

    def torn() -> None:
        with pytest.raises(TransactionBroken, match="interrupted one of its atomic"):
            place_or_give_up(key)

    assert tried.during(torn)
    assert not Order.objects.exists()
    place(key)
    assert Order.objects.count() == 1
