from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps
from django.db.models import Index, Q


def _indexes(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> list[tuple[type[models.Model], Index]]:
    """What finds stuck keys and calls in doubt: partial indexes, which stay empty while all is well.

    Not in the models' Meta: MariaDB has no partial indexes, would get none of these and warn at every migrate. It gets
    plain ones. (A later migration that alters these tables on SQLite has to make them again.)
    """
    partial = schema_editor.connection.features.supports_partial_indexes
    return [
        (
            apps.get_model("django_idempotency", "IdempotencyKey"),
            Index(
                fields=["locked_until"],
                name="idempotency_locked_idx",
                condition=Q(locked_until__isnull=False) if partial else None,
            ),
        ),
        (
            apps.get_model("django_idempotency", "IdempotencyStep"),
            Index(
                fields=["finished_at", "key"],
                name="idempotency_doubt_idx",
                condition=Q(finished_at__isnull=True) if partial else None,
            ),
        ),
    ]


def _gently(schema_editor: BaseDatabaseSchemaEditor) -> dict[str, bool]:
    """PostgreSQL: without a lock that would stop every keyed request until the index is there."""
    return {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}


def add_indexes(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for model, index in _indexes(apps, schema_editor):
        schema_editor.add_index(model, index, **_gently(schema_editor))


def remove_indexes(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for model, index in _indexes(apps, schema_editor):
        schema_editor.remove_index(model, index, **_gently(schema_editor))


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_idempotency", "0002_steps")]

    operations = [migrations.RunPython(add_indexes, remove_indexes, elidable=False)]
