"""Keys that no person has settled: what the project's `UNSETTLED_TTL` does to them."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import Q

from ..engine.conf import get_settings
from ..engine.events import report_given_up
from ..engine.stores import Store
from ..models import IdempotencyKey, IdempotencyStep
from .lookups import database_clock

if TYPE_CHECKING:
    from django.db.models import QuerySet

Status = IdempotencyKey.Status


def overdue(store: Store) -> QuerySet[IdempotencyKey]:
    """Find keys that expired at least `UNSETTLED_TTL` ago, are not completed, and have no live lease. Oldest first.

    Reads the index on `expires_at`: after a cleanup, no other expired keys are left. Empty without the setting.
    """
    keys = IdempotencyKey.objects.using(store.alias).order_by("expires_at")
    kept_for = get_settings().unsettled_seconds
    # Read first: an index cannot be used for a sum with the clock.
    now = None if kept_for is None else keys.values_list(database_clock(store.alias), flat=True).first()
    if kept_for is None or now is None:
        return keys.none()
    idle = Q(locked_until=None) | Q(locked_until__lte=now)
    return keys.filter(idle, expires_at__lte=now - timedelta(seconds=kept_for)).exclude(status=Status.COMPLETED)


def give_up(store: Store, batch_size: int) -> int:
    """Delete up to `batch_size` overdue keys in the current transaction, and report each as an error after its commit.

    Rows that another transaction holds are passed over, where the database can do that.
    """
    skips = store.connection.features.has_select_for_update_skip_locked
    fields = ("pk", "operation", "key_hash", "status", "attempt", "created_at", "resource_type", "resource_id")
    rows = list(overdue(store).only(*fields).select_for_update(skip_locked=skips)[:batch_size])
    steps = IdempotencyStep.objects.using(store.alias).filter(key__in=[row.pk for row in rows])
    doubts, done = (_names(found) for found in (steps.filter(finished_at=None), steps.filter(**FINISHED_CALL)))
    steps.delete()
    IdempotencyKey.objects.using(store.alias).filter(pk__in=[row.pk for row in rows]).only("pk").delete()
    for row in rows:
        report_given_up(row, store.alias, in_doubt=doubts[row.pk], finished=done[row.pk])
    return len(rows)


FINISHED_CALL: dict[str, Any] = {"kind": IdempotencyStep.Kind.CALL, "finished_at__isnull": False}


def _names(steps: QuerySet[IdempotencyStep]) -> dict[int, list[str]]:
    """The names of these steps by their key, oldest first."""
    names: dict[int, list[str]] = defaultdict(list)
    for key, name in steps.order_by("pk").values_list("key", "name"):
        names[key].append(name)
    return names
