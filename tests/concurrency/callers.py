"""Callers of `run_once` with a transaction of their own, and what they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from django_idempotency import run_once
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


def order(reference: str, using: str = "default") -> int:
    return int(Order.objects.using(using).create(reference=reference).pk)


def references(using: str = "default") -> list[str]:
    return list(Order.objects.using(using).values_list("reference", flat=True))
