"""Delete expired keys in many short transactions, not in one long transaction."""

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

from ..engine.conf import LEASED, resolve
from ..engine.events import report_purged
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.states import ATTENTION, EXPIRED, STUCK, Clock
from ..models import IdempotencyKey
from .lookups import refuse_out_of_range

BATCH_SIZE = 5000
"""The rows in one transaction. 5000 rows take about 10 ms on PostgreSQL, so live traffic is not disturbed."""
FREED = "cleanup_idempotency_keys: the lease was over, and nothing outside had been called."
"""The error text of a stuck key that a cleanup marks as failed. The index of failed rows needs an error text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """A `Cleanup` object says how many keys a cleanup has deleted or changed. The object also says how many keys need
    attention.

    Attributes:
        deleted: how many keys were deleted.
        batches: how many transactions changed keys.
        complete: whether all expired keys are deleted, except keys that another transaction had locked.
        stuck, in_doubt, half_done: how many keys are in these states. Each key is counted once.
        unstuck: how many stuck keys were marked as failed, because they had called nothing outside. Their next retry
            runs at once.
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
    """Delete expired keys of one database in batches. Each batch is one short transaction.

    Call this function from cron, Celery beat or django.tasks. Several cleanups can run at the same time. If the
    database has SKIP LOCKED, a cleanup does not wait for locked rows. Before the deletion, the function marks each
    stuck key as failed, so that the next retry of the key runs at once. A stuck key is harmless, because its work has
    made no external call. The function never deletes a key that is in progress, in doubt or half done. The function
    counts the keys that are in doubt or half done, but does not change these keys.

    Args:
        using: database alias; default: the write alias of the key table.
        batch_size: rows in one transaction, at least 1.
        max_seconds: after so many seconds, stop at the end of a batch.
        pause: seconds to wait between two batches.
        stop: when this event is set, the run stops at the end of the current batch. A signal handler can set the event,
            but only for the first signal.
        progress: called after each batch with the number of rows deleted so far.

    Returns:
        What was deleted, and what needs attention.

    Raises:
        ValueError: an impossible number.
        RuntimeError: another transaction is open.
        IdempotencyConfigurationError: a migration is missing, the alias is unknown, or the database has no store.
        DatabaseError: an error of the database. Keys that earlier batches deleted stay deleted.
    """
    refuse_out_of_range(1, batch_size=batch_size)
    refuse_out_of_range(0, max_seconds=max_seconds, pause=pause)
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
    """Return True if a cleanup or a recovery must stop, because its time is over or the event `stop` is set.

    The function does not call `stop.wait()`, because `wait()` locks the event `stop` for a short time. During this
    time, a signal handler in the same thread can call `stop.set()`, which needs the same lock. Then the thread would
    wait for its own lock forever. `is_set()` takes no lock.
    """
    return time.monotonic() >= deadline or (stop is not None and stop.is_set())


def free_harmless(alias: str, batch_size: int) -> int:
    """Mark at most `batch_size` stuck keys as failed, and return how many keys were marked. The caller must open a
    transaction first.

    A stuck key is harmless, because its work has made no external call. A key that was marked as failed causes no
    alarm. The next retry of a failed key runs immediately, and uses the stored steps. Perhaps the old worker of the key
    is still alive. Then the fence stops the old worker. If the database has SKIP LOCKED, the function skips rows that
    another transaction has locked.
    """
    keys = IdempotencyKey.objects.using(alias)
    found = locked(keys.filter(STUCK.condition).order_by(*STUCK.order), skip=True)
    ids = list(found.values_list("pk", flat=True)[:batch_size])
    return fail_harmless(keys.filter(pk__in=ids)) if ids else 0


def fail_harmless(keys: QuerySet[IdempotencyKey]) -> int:
    """Mark each key in `keys` as failed, but only if the key is still stuck. Return how many keys were marked. The
    caller must lock the rows of the keys before it calls this function.

    Before the row of a key is locked, a worker can still start an external call. Then the key is no longer stuck.

    When a key is marked as failed, the key is kept for at least one `ttl` after the mark.
    """
    return keys.filter(STUCK.condition).update(
        status=IdempotencyKey.Status.FAILED,
        locked_until=None,
        last_error=Value(FREED),
        updated_at=Clock(),
        expires_at=Greatest("expires_at", Clock(plus=resolve(LEASED).ttl_seconds)),
    )


def preview(using: str | None = None) -> Cleanup:
    """Return how many keys a cleanup would delete or change now. The function itself does not delete or change keys.

    The attribute `deleted` of the result is the number of expired keys. The attribute `unstuck` is the number of stuck
    keys. The attribute `stuck` is always 0. A cleanup without dry run marks every stuck key as failed, so no stuck key
    remains.
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
