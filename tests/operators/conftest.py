from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from django_idempotency.models import IdempotencyKey
from tests.expired import make_leased


@pytest.fixture
def keys_of_each_kind() -> None:
    """In doubt, half done, stuck, with a worker, and completed."""
    make_leased("doubt", "failed", doubt=True)
    make_leased("half", "failed")
    make_leased("stuck", "in_progress", lapsed=True, call=False)
    make_leased("running", "in_progress", lapsed=False, doubt=True)
    make_leased("done", "completed")
    IdempotencyKey.objects.update(policy="retry")
    resource = {"resource_type": "order", "resource_id": "59"}
    IdempotencyKey.objects.filter(key="doubt").update(policy="hold", operation="POST refund/", worker="w:7", **resource)
    IdempotencyKey.objects.filter(key="half").update(attention_at=timezone.now() - timedelta(days=7))
    IdempotencyKey.objects.filter(key="stuck").update(updated_at=timezone.now())
    IdempotencyKey.objects.filter(key="running").update(locked_until=datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC))
