"""MariaDB: a claim reads what is committed. What its locks mean is in test_stores.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency.engine.protocol.outcomes import Completed
from django_idempotency.engine.stores import Store
from django_idempotency.models import IdempotencyKey
from tests.claims import a_claim
from tests.contracts.races import SNAPSHOT, finish, store

__all__ = ["store"]  # a fixture
Threads = Callable[..., list[Any]]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.only_on("mysql")
def test_an_old_snapshot_does_not_hide_the_winners_result(store: Store, in_threads: Threads) -> None:
    """Under REPEATABLE READ a plain read would show the past; the claim reads what is committed."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert IdempotencyKey.objects.count() == 0
        in_threads(1, lambda _: finish(store))
        assert IdempotencyKey.objects.count() == 0
        assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
