"""Delete expired keys in many short transactions instead of a single long one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event

from django.db import DatabaseError
from django.db.models import QuerySet, Value
from django.db.models.functions import Greatest

from ..engine.conf import LEASED, resolve
from ..engine.events import report_purged
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.states import ATTENTION, EXPIRED, STUCK, Clock
from ..engine.stores.transactions import atomically
from ..models import IdempotencyKey
from .lookups import refuse_out_of_range

BATCH_SIZE = 5000
"""Rows per transaction. PostgreSQL deletes 5000 in about 10 ms, which is too short to disturb live traffic."""
FREED = "cleanup_idempotency_keys: the lease had expired, and nothing outside had been called."
"""The error text for stuck keys that a cleanup marks as failed. The index on failed keys needs an error text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What a cleanup deleted and changed, and how many keys need attention.

    Attributes:
        deleted: how many keys were deleted.
        batches: how many transactions changed keys.
        complete: whether all expired keys are gone, except those that another transaction had locked.
        stuck, in_doubt, half_done: how many keys are in each of these states. Each key is counted only once.
        unstuck: how many stuck keys were marked as failed, because no external call had been made for them. Their
            next retries run immediately.
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
    """Delete the expired keys of one database in batches, each in its own short transaction.

    Call it from cron, Celery beat or django.tasks; several cleanups can run simultaneously. On databases with SKIP
    LOCKED, each of them skips the rows that the others have locked. Stuck keys are marked as failed first, so that
    their next retries run immediately. This is harmless, because no external call has been made for them. Keys that
    are in progress, in doubt or half done are never deleted or changed, only counted.

    Args:
        using: database alias; default: the write alias of the key table.
        batch_size: rows per transaction, at least 1.
        max_seconds: after this many seconds, stop at the end of the current batch.
        pause: seconds to wait between two batches.
        stop: once this event is set, the run stops at the end of the current batch. A signal handler may set it, but
            only on the first signal.
        progress: called after each batch with the number of rows deleted so far.

    Returns:
        What was deleted, and what needs attention.

    Raises:
        ValueError: a number is out of range.
        RuntimeError: a transaction is already open.
        IdempotencyConfigurationError: a migration is missing, the alias is unknown, or the database has no store.
        DatabaseError: the database reported an error. Keys deleted by earlier batches stay deleted.
    """
    refuse_out_of_range(1, batch_size=batch_size)
    refuse_out_of_range(0, max_seconds=max_seconds, pause=pause)
    store = store_for(alias_for(using))
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    unstuck = deleted = batches = 0
    purging = complete = False
    not_before = None
    while not complete:
        with _explained(store):
            if purging:
                purge = partial(store.purge, batch_size, not_before)
                count, not_before = atomically(store.alias, purge, durable=True)
            else:
                count = atomically(store.alias, partial(free_harmless, store.alias, batch_size), durable=True)
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
        counts = _attention(store)
    cleanup = Cleanup(deleted=deleted, batches=batches, complete=complete, unstuck=unstuck, **counts)
    report_purged(cleanup, store.alias)
    return cleanup


def is_over(stop: Event | None, deadline: float) -> bool:
    """Whether a cleanup or a recovery must stop.

    `is_set()` takes no lock, but `stop.wait()` would briefly take the event's lock. If a signal handler called
    `stop.set()` in the same thread during that time, it would wait forever for a lock that its own thread holds.
    """
    return time.monotonic() >= deadline or (stop is not None and stop.is_set())


def free_harmless(alias: str, batch_size: int) -> int:
    """Mark up to `batch_size` stuck keys as failed, inside the caller's transaction, and return how many were marked.

    No external call has been made for these keys, so nothing is lost: the next retry runs immediately with the stored
    steps, and the fence stops the old worker if it is still alive. Locked rows are skipped if the database has SKIP
    LOCKED.
    """
    keys = IdempotencyKey.objects.using(alias)
    rows = locked(keys.filter(STUCK.condition).order_by(*STUCK.order), skip=True)
    ids = list(rows.values_list("pk", flat=True)[:batch_size])
    return fail_harmless(keys.filter(pk__in=ids)) if ids else 0


def fail_harmless(keys: QuerySet[IdempotencyKey]) -> int:
    """Mark still-stuck keys as failed, and return their number. Their rows must be locked.

    The state is checked again, because a worker may have started an external call before the rows were locked. Marked
    keys are kept for at least one more `ttl`.
    """
    return keys.filter(STUCK.condition).update(
        status=IdempotencyKey.Status.FAILED,
        locked_until=None,
        last_error=Value(FREED),
        updated_at=Clock(),
        expires_at=Greatest("expires_at", Clock(plus=resolve(LEASED).ttl_seconds)),
    )


def preview(using: str | None = None) -> Cleanup:
    """Count the keys that a cleanup would delete now (`deleted`) or mark as failed (`unstuck`), without changing any.

    `stuck` is 0, because a real cleanup would leave no key stuck.
    """
    store = store_for(alias_for(using))
    with _explained(store):
        keys, counts = IdempotencyKey.objects.using(store.alias), _attention(store)
        expired, unstuck = keys.filter(EXPIRED.condition).count(), counts.pop("stuck")
    return Cleanup(deleted=expired, batches=0, complete=False, unstuck=unstuck, stuck=0, **counts)


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
