"""The takeover of a recovery meets an error of the database: nothing was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.http import HttpResponse

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.engine.execution.claiming import claimed
from django_idempotency.engine.execution.leased import committed
from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance import Asked, recover_idempotency_keys
from django_idempotency.testing import create_key
from tests.claims import a_claim
from tests.integration.leased_urls import HOOKS
from tests.leases import row
from tests.sql import NO_TABLE, instead

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.leased_urls")]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Let the next takeovers of the key in doubt fail with real errors of PostgreSQL. Gives the list of takeovers."""
    create_key(operation="POST pay/reconcile", in_doubt=["charge"])
    HOOKS["reconcile"] = lambda operation: HttpResponse("settled")
    store, tries = store_for("default"), list[Any]()
    take_over = store.resume

    def with_states(*states: str) -> list[Any]:
        def resume(*args: Any) -> Any:
            tries.append(args)
            if len(tries) <= len(states):
                with connection.cursor() as cursor:
                    cursor.execute(f"DO $$ BEGIN RAISE SQLSTATE '{states[len(tries) - 1]}'; END $$")
            return take_over(*args)

        monkeypatch.setattr(store, "resume", resume)
        return tries

    return with_states


def recover() -> list[Asked]:
    told: list[Asked] = []
    recover_idempotency_keys(older_than=0, progress=told.append)
    return told


@pytest.mark.only_on("postgresql")
class TestADatabaseError:
    @pytest.mark.parametrize("state", ["40001", "40P01"])
    def test_that_asks_to_repeat_the_transaction(self, fail: Callable[..., list[Any]], state: str) -> None:
        """Nothing has run yet, so the takeover is repeated: once."""
        tries = fail(state)
        assert [asked.outcome for asked in recover()] == ["completed"]
        assert (row().status, len(tries)) == ("completed", 2)

    @pytest.mark.parametrize("states", [("55P03",), ("57014",), ("40001", "40P01")])
    def test_a_busy_database_is_asked_the_next_time(
        self, fail: Callable[..., list[Any]], states: tuple[str, ...]
    ) -> None:
        """Also a database that asks to repeat twice: a retry may be about to win."""
        tries = fail(*states)
        assert [asked.outcome for asked in recover()] == ["passed"]
        assert (row().status, row().attempt, len(tries)) == ("failed", 1, len(states))

    def test_any_other_error_propagates(self, fail: Callable[..., list[Any]]) -> None:
        fail("53100")
        with pytest.raises(DatabaseError):
            recover()
        assert (row().status, row().attempt) == ("failed", 1)


@pytest.mark.django_db(transaction=True)
def test_a_missing_migration_is_explained() -> None:
    """With the command to run."""
    store = store_for("default")
    with instead(*NO_TABLE), pytest.raises(IdempotencyConfigurationError, match=r"python manage\.py migrate$"):
        claimed(store, lambda: committed(store, "a test", lambda: store.resume(a_claim(lease=60.0), 1)))
