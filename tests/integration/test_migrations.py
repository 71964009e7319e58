"""The schema."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from django_idempotency.models import IdempotencyKey

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
