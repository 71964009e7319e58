"""The schema of models.py, and its migrations."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from django_idempotency.columns import exact_collation
from django_idempotency.models import IdempotencyKey, IdempotencyStep

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


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_pages_leave_room_for_the_result() -> None:
    """fillfactor 95: completing a key touches no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [TABLE])
        assert cursor.fetchone() == (["fillfactor=95"],)
