"""Stuck keys that no person needs to look at: their worker died before it called anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils import timezone

from ..engine.conf import resolve
from ..exceptions import NotDecryptable
from .decisions import Decision, with_decision
from .lookups import harmless

if TYPE_CHECKING:
    from ..engine.stores import Store

BY = "cleanup_idempotency_keys"
REASON = "The lease was over, and nothing outside had been called."


def fail_harmless(store: Store, batch_size: int, passed_over: set[int]) -> int:
    """Fail up to `batch_size` such keys in the current transaction, so that they alarm no more. How many it were.

    The next retry runs at once, and goes on from the steps that are kept. A worker that wakes up fails at its fence.
    Rows that another transaction holds are passed over, where the database can do that.

    Args:
        passed_over: ids of rows that this run has met and cannot fail. More are added.
    """
    skips = store.connection.features.has_select_for_update_skip_locked
    rows = harmless(using=store.alias).only("key_hash", "scope_hash", "attempt", "decisions")
    at, ttl, failed = timezone.now().isoformat(timespec="seconds"), resolve().ttl_seconds, 0
    while failed < batch_size:
        wanted = batch_size - failed
        found = list(rows.exclude(pk__in=passed_over).select_for_update(skip_locked=skips)[:wanted])
        for row in found:
            made = Decision(action="fail", at=at, by=BY, reason=REASON, attempt=row.attempt)
            try:
                trail = with_decision(row, row.decisions, made)
            except NotDecryptable:
                passed_over.add(row.pk)  # it stays stuck, and other keys need not wait for the missing encryption key
                continue
            # A worker may have started a call before its row was locked: the condition is asked again, under the lock.
            if store.fail_harmless(row, row.attempt, ttl, trail):
                failed += 1
            else:
                passed_over.add(row.pk)
        if len(found) < wanted:
            break
    return failed
