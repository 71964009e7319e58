import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_payments")]

    operations = [
        migrations.CreateModel(
            name="Report",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("item", models.CharField(max_length=100)),
                ("key", models.CharField(max_length=255)),
                (
                    "status",
                    models.CharField(
                        choices=[("in_progress", "in progress"), ("completed", "completed"), ("failed", "failed")],
                        default="in_progress",
                        max_length=20,
                    ),
                ),
                ("orders", models.PositiveIntegerField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
    ]
