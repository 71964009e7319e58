"""The schema of models.py, and its migrations."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from django_idempotency.columns import exact_collation
from django_idempotency.models import IdempotencyKey, IdempotencyStep

TABLE = IdempotencyKey._meta.db_table
TIMES = ("created_at", "updated_at", "expires_at")


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


@pytest.mark.only_on("mysql")
@pytest.mark.django_db
@pytest.mark.parametrize("texts", [("abc", "ABC"), ("a", "á"), ("a", "a ")])
def test_texts_that_identify_are_compared_byte_by_byte(texts: tuple[str, str]) -> None:
    """Scope, operation and key of a row, and the name of a step: no two of them are one because of a collation."""
    now = timezone.now()
    for number, text in enumerate(texts):
        row = IdempotencyKey.objects.create(
            key_hash=number, scope_hash=0, scope=text, operation=text, key=text, **dict.fromkeys(TIMES, now)
        )
        IdempotencyStep.objects.create(key_id=1, name=text, kind="call", attempt=1, started_at=now)
        for column in ("scope", "operation", "key"):
            assert IdempotencyKey.objects.get(**{column: text}) == row


@pytest.mark.only_on("mysql")
@pytest.mark.django_db(transaction=True)
def test_a_later_change_of_a_column_keeps_its_collation() -> None:
    """The field says it, and not an ALTER TABLE beside the migration."""
    field = IdempotencyStep._meta.get_field("name")
    wider = field.clone()
    wider.max_length = 120
    wider.set_attributes_from_name("name")
    wider.model = IdempotencyStep
    try:
        with connection.schema_editor() as editor:
            editor.alter_field(IdempotencyStep, field, wider)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT collation_name FROM information_schema.columns "
                "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = 'name'",
                [IdempotencyStep._meta.db_table],
            )
            assert cursor.fetchone() == (exact_collation(connection),)
    finally:
        with connection.schema_editor() as editor:
            editor.alter_field(IdempotencyStep, wider, field)


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
    assert keys["idempotency_scope_idx"]["columns"] == ["scope"]
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


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
@pytest.mark.parametrize("name", ["locked", "failed", "resource", "doubt"])
def test_indexes_of_few_rows_are_partial(name: str) -> None:
    """So a completed key is in none of them, and its completion stays a HOT update."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", [f"idempotency_{name}_idx"])
        assert " WHERE " in cursor.fetchone()[0]
