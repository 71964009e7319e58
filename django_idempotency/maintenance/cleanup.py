"""Deleting expired keys: many short transactions, not one long transaction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from django.db import DatabaseError, transaction
from django.db.models import QuerySet, Value
from django.db.models.functions import Greatest

from ..engine.conf import resolve
from ..engine.events import report_purged
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.states import ATTENTION, EXPIRED, STUCK, Clock
from ..models import IdempotencyKey
from .lookups import refuse_impossible

BATCH_SIZE = 5000
"""Rows in one transaction: about 10 ms on PostgreSQL, below anything that live traffic notices."""
FREED = "cleanup_idempotency_keys: the lease was over, and nothing outside had been called."
"""The last error of a stuck key that was failed: every failed row has one, for the partial index of failed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What a cleanup did, and how many keys it counted but did not touch.

    Attributes:
        deleted: how many keys were deleted.
        batches: how many transactions that took.
        complete: whether every expired key is gone, except those that another transaction held.
        stuck, in_doubt, half_done: how many keys are in these states. Each key is counted once.
        unstuck: how many stuck keys were failed, because they had called nothing outside. The next retry runs.
    """

    deleted: int
    batches: int
    complete: bool
    stuck: int
    in_doubt: int
    half_done: int = 0
    unstuck: int = 0


def cleanup_idempotency_keys(
    *,
    using: str | None = None,
    batch_size: int = BATCH_SIZE,
    max_seconds: float | None = None,
    pause: float = 0,
    stop: Event | None = None,
    progress: Callable[[int], None] = lambda deleted: None,
) -> Cleanup:
    """Delete the expired keys of one database, batch by batch, each in a short transaction of its own.

    For cron, Celery beat or django.tasks. Several cleanups may run at once; where the database can, a cleanup passes
    over locked rows. Stuck keys that have called nothing outside are failed first, so that their next retry runs. Keys
    in progress, in doubt or half done are counted, and never deleted.

    Args:
        using: database alias; default: the write alias of the key table.
        batch_size: rows in one transaction, at least 1.
        max_seconds: stop after that many seconds, at the end of a batch.
        pause: seconds to rest between two batches.
        stop: once set, this event ends the run after the running batch. A signal handler may set it,
            but only for the first signal.
        progress: called after each batch with the number of rows deleted so far.

    Returns:
        What was deleted, and what needs attention.

    Raises:
        ValueError: for impossible numbers.
        RuntimeError: inside an outer transaction.
        IdempotencyConfigurationError: if a migration is missing, for an unknown alias, or a database without a store.
        DatabaseError: from the database. What earlier batches deleted stays deleted.
    """
    refuse_impossible(1, batch_size=batch_size)
    refuse_impossible(0, max_seconds=max_seconds, pause=pause)
    store = store_for(alias_for(using))
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    unstuck = deleted = batches = 0
    purging = complete = False
    not_before = None
    while not complete:
        with _explained(store), transaction.atomic(using=store.alias, durable=True):
            if purging:
                count, not_before = store.purge(batch_size, not_before)
            else:
                count = free_harmless(store.alias, batch_size)
        batches += count > 0
        if not purging:
            unstuck += count
        elif count:
            deleted += count
            progress(deleted)
        complete, purging = purging and count < batch_size, purging or count < batch_size
        if count == batch_size:
            time.sleep(pause)
            if is_over(stop, deadline):
                break
    with _explained(store):
        found = _attention(store)
    cleanup = Cleanup(deleted=deleted, batches=batches, complete=complete, unstuck=unstuck, **found)
    report_purged(cleanup, store.alias)
    return cleanup


def is_over(stop: Event | None, deadline: float) -> bool:
    """Whether a run ends here.

    Not `stop.wait()`, which holds the event's lock for moments. If a signal arrives then, its handler's `stop.set()`
    waits for the lock in the same thread, for ever. `is_set()` takes no lock.
    """
    return time.monotonic() >= deadline or (stop is not None and stop.is_set())


def free_harmless(alias: str, batch_size: int) -> int:
    """Fail up to `batch_size` such keys in the current transaction, so that they alarm no more. How many it were.

    The next retry runs at once, and goes on from the steps that are kept. A worker that wakes up fails at its fence.
    Rows that another transaction holds are passed over, where the database can do that.
    """
    keys = IdempotencyKey.objects.using(alias)
    found = locked(keys.filter(STUCK.condition).order_by(*STUCK.order), skip=True)
    ids = list(found.values_list("pk", flat=True)[:batch_size])
    return fail_harmless(keys.filter(pk__in=ids)) if ids else 0


def fail_harmless(keys: QuerySet[IdempotencyKey]) -> int:
    """Fail those of these locked keys that are harmless: a worker may have started a call before its row was locked.

    They are kept for a `ttl` from now on, if the time that was set at the claim is over sooner.
    """
    return keys.filter(STUCK.condition).update(
        status=IdempotencyKey.Status.FAILED,
        locked_until=None,
        last_error=Value(FREED),
        updated_at=Clock(),
        expires_at=Greatest("expires_at", Clock(plus=resolve().ttl_seconds)),
    )


def preview(using: str | None = None) -> Cleanup:
    """What a cleanup would find now: `deleted` is how many keys have expired. Deletes nothing.

    `unstuck` keys are not counted as `stuck`.
    """
    store = store_for(alias_for(using))
    with _explained(store):
        keys, found = IdempotencyKey.objects.using(store.alias), _attention(store)
        expired, unstuck = keys.filter(EXPIRED.condition).count(), found.pop("stuck")
    return Cleanup(deleted=expired, batches=0, complete=False, unstuck=unstuck, stuck=0, **found)


def _attention(store: Store) -> dict[str, int]:
    keys = IdempotencyKey.objects.using(store.alias)
    return {state.name: keys.filter(state.condition).count() for state in ATTENTION}


@contextmanager
def _explained(store: Store) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        store.explain(error)
        raise
