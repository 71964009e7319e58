"""Callers of `run_once` with a transaction of their own, what they write, and how long they wait for a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency import run_once
from tests.servers import DEADLINE
from tests.shopapp.models import Order


@contextmanager
def without_autocommit(using: str = "default") -> Iterator[None]:
    transaction.set_autocommit(False, using)
    try:
        yield
        transaction.commit(using)
    finally:
        transaction.rollback(using)
        transaction.set_autocommit(True, using)


CALLERS = pytest.mark.parametrize("caller", [transaction.atomic, without_autocommit])
"""How a caller opens a transaction of its own around `run_once`."""


def once(work: Callable[[], Any], **options: Any) -> Any:
    return run_once(work, scope="caller", key="key", operation="order", **options)


def beside(in_threads: Callable[..., list[Any]], duplicate: Callable[[], Any], **options: Any) -> Any:
    """Return the result of `duplicate`, which is called while another transaction runs the key."""
    started, ended = Event(), Event()

    def work() -> None:
        started.set()
        assert ended.wait(DEADLINE), "the duplicate never got its answer"

    def run(number: int) -> Any:
        if number == 0:
            return once(work, **options)
        assert started.wait(DEADLINE), "the first never began"
        try:
            return duplicate()
        finally:
            ended.set()

    return in_threads(2, run)[1]


TIMEOUTS = {
    "postgresql": ("SET lock_timeout = '{}s'", "SHOW lock_timeout", "7s"),
    "mysql": ("SET innodb_lock_wait_timeout = {}", "SELECT @@innodb_lock_wait_timeout", 7),
}
"""How a project sets its lock timeout in seconds, how to read it, and what 7 seconds then are."""


def impatiently(work: Callable[[], Any], seconds: int = 7) -> Any:
    """Do something that must not wait for a lock: if it does, it fails after some seconds instead of hanging."""
    with connection.cursor() as cursor:
        cursor.execute(TIMEOUTS[connection.vendor][0].format(seconds))
    return work()


def order(reference: str, using: str = "default") -> int:
    return int(Order.objects.using(using).create(reference=reference).pk)


def references(using: str = "default") -> list[str]:
    return list(Order.objects.using(using).values_list("reference", flat=True))
