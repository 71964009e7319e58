from django.db import migrations, models


class Migration(migrations.Migration):
    """All columns are nullable and without a default: no database rewrites the table, and older code goes on."""

    dependencies = [("django_idempotency", "0003_attention_indexes")]

    operations = [
        migrations.AddField(
            "idempotencykey",
            "policy",
            models.CharField(
                blank=True,
                choices=[("retry", "retry: make the call again"), ("hold", "hold: wait for a decision")],
                max_length=5,
                null=True,
                verbose_name="policy",
            ),
        ),
        migrations.AddField(
            "idempotencykey",
            "resource_type",
            models.CharField(blank=True, max_length=100, null=True, verbose_name="resource type"),
        ),
        migrations.AddField(
            "idempotencykey",
            "resource_id",
            models.CharField(blank=True, max_length=255, null=True, verbose_name="resource ID"),
        ),
        migrations.AddField(
            "idempotencykey",
            "decisions",
            models.TextField(blank=True, null=True, verbose_name="decisions"),
        ),
        migrations.AddField(
            "idempotencykey",
            "updated_at",
            models.DateTimeField(blank=True, null=True, verbose_name="updated at"),
        ),
        migrations.AlterField(
            "idempotencystep",
            "kind",
            models.CharField(
                choices=[("call", "external call"), ("fetch", "external read"), ("write", "local write")],
                max_length=5,
                verbose_name="kind",
            ),
        ),
    ]
