from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps
from django.db.models import Index, Q


def _indexes(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> list[tuple[type[models.Model], Index]]:
    """What finds failed keys and the keys of a resource: partial indexes. See migration 0003 about MariaDB."""
    partial = schema_editor.connection.features.supports_partial_indexes
    keys = apps.get_model("django_idempotency", "IdempotencyKey")
    return [
        (
            keys,
            # Every failed key has an error. A condition on `status` would end HOT: each completion changes the status.
            # Without partial indexes, the status has to come first: few keys have failed.
            Index(fields=["created_at"], name="idempotency_failed_idx", condition=Q(last_error__isnull=False))
            if partial
            else Index(fields=["status", "created_at"], name="idempotency_failed_idx"),
        ),
        (
            keys,
            Index(
                fields=["resource_id", "resource_type"],
                name="idempotency_resource_idx",
                condition=Q(resource_id__isnull=False) if partial else None,
            ),
        ),
    ]


def _gently(schema_editor: BaseDatabaseSchemaEditor) -> dict[str, bool]:
    """PostgreSQL: without a lock that would stop every keyed request until the index is there."""
    return {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}


def add_indexes(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    keys = apps.get_model("django_idempotency", "IdempotencyKey")
    unexplained = keys.objects.using(schema_editor.connection.alias).filter(status="failed", last_error=None)
    unexplained.update(last_error="A decision ended this attempt.")  # as version 0.2 writes it
    for model, index in _indexes(apps, schema_editor):
        schema_editor.add_index(model, index, **_gently(schema_editor))


def remove_indexes(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for model, index in _indexes(apps, schema_editor):
        schema_editor.remove_index(model, index, **_gently(schema_editor))


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_idempotency", "0004_attention")]

    operations = [migrations.RunPython(add_indexes, remove_indexes, elidable=False)]
