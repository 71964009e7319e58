"""The schema of models.py, and its migrations."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import SNAPSHOT, a_claim
from tests.servers import eventually

TABLE = IdempotencyKey._meta.db_table


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    """The models are what the migrations make."""
    call_command("makemigrations", "django_idempotency", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_they_run_back_and_forward() -> None:
    """Uninstalling leaves nothing."""
    call_command("migrate", "django_idempotency", "zero", verbosity=0)
    assert TABLE not in connection.introspection.table_names()
    call_command("migrate", "django_idempotency", verbosity=0)
    assert TABLE in connection.introspection.table_names()


@pytest.mark.django_db(transaction=True)
def test_a_filled_table_goes_back_and_forward() -> None:
    """Keys of the first migration are replayed under the second; those of the second survive without their steps."""
    store = store_for("default")
    with transaction.atomic():
        claimed = store.claim(a_claim())
        assert isinstance(claimed, Claimed)
        store.complete(claimed, SNAPSHOT)
        leased = store.claim(a_claim(key="leased", lease=60.0))
        assert isinstance(leased, Claimed)
        store.start_call(leased, "charge", again=False)
    call_command("migrate", "django_idempotency", "0001", verbosity=0)
    assert IdempotencyStep._meta.db_table not in connection.introspection.table_names()
    call_command("migrate", "django_idempotency", verbosity=0)
    with transaction.atomic():
        assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
        assert store.claim(a_claim(key="leased", lease=60.0)) == Conflicted()
    assert not IdempotencyStep.objects.exists()


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("target", ["0005", "0004"])
def test_keyed_requests_go_on_while_it_migrates(in_threads: Callable[..., list[Any]], target: str) -> None:
    """Forward and back: even one that has to wait for an older transaction holds nobody up behind it.

    A plain CREATE INDEX would wait for that transaction with a lock in its hands that every new claim queues behind.
    """
    call_command("migrate", "django_idempotency", "0004" if target == "0005" else "0005", verbosity=0)
    store = store_for("default")

    def migrate(number: int) -> None:
        call_command("migrate", "django_idempotency", target, verbosity=0)

    def waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

    def claim(number: int) -> Any:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '5s'")
            return type(store.claim(a_claim(key=str(number))))

    try:
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                store.claim(a_claim(key="older"))
                running = pool.submit(in_threads, 1, migrate)
                eventually("the migration to wait", waits)
                assert in_threads(3, claim) == [Claimed] * 3
                assert not running.done()
            running.result(timeout=30)
    finally:
        call_command("migrate", "django_idempotency", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid")
        assert cursor.fetchone() == (0,)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_new_columns_wait_no_longer_than_the_operator_says(
    in_threads: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/upgrade.md advises: behind an open transaction the migration gives up, and nothing has changed."""
    call_command("migrate", "django_idempotency", "0003", verbosity=0)
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=300ms")

    def add_columns(number: int) -> None:
        call_command("migrate", "django_idempotency", "0004", verbosity=0)

    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT count(*) FROM {TABLE}")
            with pytest.raises(OperationalError, match="lock timeout"):
                in_threads(1, add_columns)
        in_threads(1, add_columns)
    finally:
        call_command("migrate", "django_idempotency", verbosity=0)
    assert IdempotencyKey.objects.filter(updated_at=None).count() == 0


@pytest.mark.django_db
def test_what_needs_attention_is_found_by_indexes() -> None:
    """Partial ones, where the database has such."""
    with connection.cursor() as cursor:
        keys = connection.introspection.get_constraints(cursor, TABLE)
        steps = connection.introspection.get_constraints(cursor, IdempotencyStep._meta.db_table)
    partial = connection.features.supports_partial_indexes
    assert keys["idempotency_locked_idx"]["columns"] == ["locked_until"]
    assert keys["idempotency_failed_idx"]["columns"] == (["created_at"] if partial else ["status", "created_at"])
    assert keys["idempotency_resource_idx"]["columns"] == ["resource_id", "resource_type"]
    assert steps["idempotency_doubt_idx"]["columns"] == ["finished_at", "key_id"]
    assert steps["idempotency_step_uniq"]["columns"] == ["key_id", "name"]


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_pages_leave_room_for_the_result() -> None:
    """fillfactor 95: completing a key touches no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [TABLE])
        assert cursor.fetchone() == (["fillfactor=95"],)


@pytest.mark.django_db
def test_the_unique_constraint_guards() -> None:
    """Over the two hashes."""
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, TABLE)
    assert constraints["idempotency_key_uniq"]["unique"] is True
    assert constraints["idempotency_key_uniq"]["columns"] == ["key_hash", "scope_hash"]
    assert constraints["idempotency_expires_idx"]["columns"] == ["expires_at"]
