"""The schema of models.py, and its migrations."""

from __future__ import annotations

from hashlib import sha256
from importlib import import_module
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import (
    AddConstraint,
    AddField,
    AddIndex,
    AlterField,
    CreateModel,
    RemoveField,
    RemoveIndex,
    RenameField,
    RunSQL,
    SeparateDatabaseAndState,
)
from django.db.migrations.operations.base import Operation

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


FROZEN = "ce595005f71ab4839404ebcabdaf323e7649cb9200f2895c7b12445779349249"
"""The SHA-256 of the first migration, which is that of 0.4.0: whoever has applied it applies it never again."""
ADDING = (CreateModel, AddIndex)
"""`AddIndexConcurrently` is an AddIndex."""


def takes_away(operation: Operation) -> bool:
    """Whether the previous release could miss something, or be refused something, after this operation."""
    if isinstance(operation, SeparateDatabaseAndState):
        return any(takes_away(part) for part in [*operation.database_operations, *operation.state_operations])
    if isinstance(operation, AddField):
        # The previous release inserts rows without the column.
        return not operation.field.null and not operation.field.has_db_default()
    return not isinstance(operation, ADDING)


def test_the_first_migration_is_frozen() -> None:
    """A change of it would reach new projects only."""
    source = Path(import_module("django_idempotency.migrations.0001_initial").__file__ or "").read_bytes()
    assert sha256(source).hexdigest() == FROZEN


def test_later_migrations_only_add() -> None:
    """The previous release works with the new tables, beside this one and after it is taken back."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    later = [
        (name, operation)
        for (app, name), migration in loader.disk_migrations.items()
        if app == "django_idempotency" and name != "0001_initial"
        for operation in migration.operations
    ]
    assert [(name, operation.describe()) for name, operation in later if takes_away(operation)] == []


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (AddField("idempotencykey", "note", models.TextField(null=True)), False),
        (AddField("idempotencykey", "tries", models.IntegerField(default=0, db_default=0)), False),
        (AddField("idempotencykey", "tries", models.IntegerField(default=0)), True),
        (AddIndex("idempotencykey", models.Index(fields=["worker"], name="idempotency_worker_idx")), False),
        (CreateModel("Note", [("id", models.BigAutoField(primary_key=True))]), False),
        (AddConstraint("idempotencykey", models.UniqueConstraint(fields=["worker"], name="one_worker")), True),
        (AlterField("idempotencykey", "worker", models.CharField(max_length=50)), True),
        (RemoveField("idempotencykey", "worker"), True),
        (RenameField("idempotencykey", "worker", "by"), True),
        (RemoveIndex("idempotencykey", "idempotency_locked_idx"), True),
        (RunSQL("DELETE FROM django_idempotency_idempotencykey"), True),
        (SeparateDatabaseAndState([RemoveField("idempotencykey", "worker")]), True),
    ],
)
def test_what_adds(operation: Operation, expected: bool) -> None:
    """A column that the previous release must fill takes something away from it."""
    assert takes_away(operation) is expected
