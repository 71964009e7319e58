"""Locks of psycopg and Django, left held by an exception that struck as they were taken: nothing waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings

from django_idempotency import Operation, run_once
from django_idempotency.maintenance import (
    cleanup_idempotency_keys,
    forget,
    needs_attention,
    recover_idempotency_keys,
)
from tests.servers import eventually
from tests.shopapp.models import Order
from tests.sql import ask
from tests.strikes import Limit
from tests.unreachable import reached_by

pytest.importorskip("psycopg")
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]


def holds_the_lock() -> int:
    """In Python 3.14, an exception can strike between the two halves of `with raw.lock:`."""
    pk = Order.objects.create(reference="struck").pk
    connections["default"].connection.lock.acquire()
    raise Limit(pk)


def holds_djangos_lock() -> int:
    """The same, as Django asks before a query whether threads share the connection."""
    pk = Order.objects.create(reference="struck").pk
    connections["default"]._thread_sharing_lock.acquire()
    raise Limit(pk)


def atomic(work: Callable[[], Any], key: str = "k") -> None:
    run_once(work, scope="s", key=key, operation="o")


def leased(work: Callable[[], Any], key: str = "k") -> None:
    def steps(operation: Operation) -> None:
        operation.write("order", work)

    run_once(steps, scope="s", key=key, operation="o", lease=60)


def in_callers(work: Callable[[], Any], key: str = "k") -> None:
    with transaction.atomic():
        atomic(work, key)


def place() -> int:
    return int(Order.objects.create(reference="later").pk)


POOL: dict[str, Any] = {"OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}, "CONN_MAX_AGE": 0}


@pytest.mark.parametrize("act", [atomic, leased, in_callers])
@pytest.mark.parametrize("changes", [{}, POOL], ids=["direct", "pool"])
def test_the_connection_is_given_up(act: Callable[..., None], changes: dict[str, Any]) -> None:
    """The key is free, no transaction stays open on the server, and what comes next is committed."""
    with reached_by(changes) as wrapper:
        try:
            with wrapper.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (struck,) = cursor.fetchone()
            with pytest.raises(Limit):
                act(holds_the_lock)
            gone = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {struck}"
            eventually("the server ends the session", lambda: ask(gone) == (0,))
            for key in ("k", "l", "m"):
                act(place, key)
            assert list(Order.objects.values_list("reference", flat=True)) == ["later"] * 3
        finally:
            wrapper.close()
            wrapper.close_pool()


def unprotected(work: Callable[[], Any], key: str = "k") -> None:
    with override_settings(IDEMPOTENCY={"ENABLED": False}):
        atomic(work, key)


@pytest.mark.parametrize("lock", ["django", "psycopg"])
@pytest.mark.parametrize(
    "act",
    [
        lambda: atomic(place),
        lambda: leased(place),
        lambda: unprotected(place),
        lambda: forget("s", "k"),
        lambda: cleanup_idempotency_keys(),
        lambda: recover_idempotency_keys(),
        lambda: list(needs_attention()),
    ],
    ids=["atomic", "leased", "off", "forget", "cleanup", "recovery", "attention"],
)
def test_a_lock_that_was_left_held_between_two_requests(act: Callable[[], Any], lock: str) -> None:
    """An exception can strike in a query outside our transactions, too, such as one of the project's."""
    wrapper: Any = connections["default"]
    wrapper.ensure_connection()
    {"django": wrapper._thread_sharing_lock, "psycopg": wrapper.connection.lock}[lock].acquire()
    act()
    atomic(place, "later")
    assert Order.objects.exists()


@pytest.mark.parametrize("act", [atomic, leased, in_callers])
def test_djangos_own_lock_is_replaced(act: Callable[..., None]) -> None:
    """Every later query would wait for it."""
    with pytest.raises(Limit):
        act(holds_djangos_lock)
    act(place)
    act(place, "l")
    assert list(Order.objects.values_list("reference", flat=True)) == ["later"] * 2
