"""Deleting expired keys: many short transactions, not one long transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from django.db import DatabaseError, transaction

from ..engine.conf import get_settings
from ..engine.events import report_purged
from ..engine.stores import Store, alias_for, store_for
from .harmless import fail_harmless
from .lookups import half_done, harmless, in_doubt, stuck
from .unsettled import give_up, overdue

BATCH_SIZE = 5000
"""Rows in one transaction: about 10 ms on PostgreSQL, below anything that live traffic notices."""
MAX_BATCH_SIZE = 2**31 - 1
"""More than a table has, and a LIMIT that each database takes."""
FAILED_AT_ONCE = 100
"""Each takes a statement of its own, and its row stays locked until the batch commits."""
LOOK = 0.1
"""Seconds between two looks at `stop` in a pause: a run that is told to end does so without a noticeable delay."""
LEFT_BEHIND = "The view ended its own transaction in the middle: a cleanup has found it after its ttl."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What a cleanup did, and how many keys it counted but did not touch.

    Attributes:
        deleted: how many keys were deleted.
        batches: in how many transactions.
        complete: whether every expired key is gone, except those that another transaction held.
        stuck: keys in progress that no worker holds. They wait for a retry; those without a lease, for a person.
        in_doubt: failed or stuck keys with an external call that may have taken effect. A key can be both stuck and
            in doubt.
        half_done: failed or stuck keys with a finished external call. A key can be all three.
        given_up: how many of the three were deleted after the project's `UNSETTLED_TTL`.
        unstuck: how many stuck keys were failed, because they had called nothing outside. The next retry runs.
    """

    deleted: int
    batches: int
    complete: bool
    stuck: int
    in_doubt: int
    half_done: int = 0
    given_up: int = 0
    unstuck: int = 0


def cleanup_idempotency_keys(
    *,
    using: str | None = None,
    batch_size: int = BATCH_SIZE,
    max_batches: int | None = None,
    max_seconds: float | None = None,
    pause: float = 0,
    stop: Event | None = None,
    progress: Callable[[int], None] = lambda deleted: None,
) -> Cleanup:
    """Delete the expired keys of one database, batch by batch, each in a short transaction of its own.

    For cron, Celery beat or django.tasks. Several cleanups may run at once; where the database can, a cleanup passes
    over locked rows. Stuck keys that have called nothing outside are failed first, so that their next retry runs. Keys
    in progress, in doubt or half done are counted, and never deleted without `UNSETTLED_TTL`.

    Args:
        using: database alias; default: the write alias of the key table.
        batch_size: rows in one transaction, at least 1. At most 100 stuck keys are failed in one.
        max_batches: stop after that many batches, at least 1.
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
    _refuse_impossible(batch_size, max_batches, max_seconds, pause)
    store = store_for(alias_for(using))
    limits = _Limits(max_batches, max_seconds, pause, stop or Event())
    not_before = None

    def purge() -> int:
        nonlocal not_before
        count, not_before = store.purge(batch_size, not_before)
        return count

    def fail() -> int:
        return fail_harmless(store, at_once, passed_over)

    at_once, passed_over = min(batch_size, FAILED_AT_ONCE), set[int]()
    unstuck, complete = _in_batches(store, fail, at_once, limits, lambda count: None)
    deleted = given_up = 0
    if complete:
        deleted, complete = _in_batches(store, purge, batch_size, limits, progress)
    if complete and get_settings().unsettled_seconds is not None:
        given_up, complete = _given_up(store, batch_size, limits, lambda count: progress(deleted + count))
    if complete:
        # Only now few expired rows are left to walk over.
        with _explained(store), transaction.atomic(using=store.alias, durable=True):
            store.note_expired_unleased(LEFT_BEHIND, batch_size)
    with _explained(store):
        found = _attention(store)
    counted = {"deleted": deleted, "given_up": given_up, "unstuck": unstuck, **found}
    cleanup = Cleanup(batches=limits.batches, complete=complete, **counted)
    report_purged(cleanup, store.alias)
    return cleanup


def _given_up(store: Store, batch_size: int, limits: _Limits, progress: Callable[[int], None]) -> tuple[int, bool]:
    """The second half of a run: how many keys were given up, and whether none is left."""
    if limits.reached():
        return 0, False
    return _in_batches(store, lambda: give_up(store, batch_size), batch_size, limits, progress)


class _Limits:
    """When a run has to end, and how many batches it has deleted."""

    def __init__(self, max_batches: int | None, max_seconds: float | None, pause: float, stop: Event) -> None:
        self.batches = 0
        self._max_batches = max_batches
        self._deadline = None if max_seconds is None else time.monotonic() + max_seconds
        self._pause = pause
        self._stop = stop

    def reached(self) -> bool:
        """Asked between two batches: rests for the pause, unless the run is over."""
        at_most = self._max_batches
        over = (at_most is not None and self.batches >= at_most) or (
            self._deadline is not None and time.monotonic() >= self._deadline
        )
        return over or self._stopped_in_the_pause()

    def _stopped_in_the_pause(self) -> bool:
        """Rest for the pause. Whether `stop` was set before its end.

        Not `stop.wait()`, which holds the event's lock for moments. If a signal arrives then, its handler's
        `stop.set()` waits for the lock in the same thread, for ever. `is_set()` takes no lock.
        """
        end = time.monotonic() + self._pause
        while not self._stop.is_set():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, LOOK))
        return True


def _in_batches(
    store: Store, delete: Callable[[], int], batch_size: int, limits: _Limits, progress: Callable[[int], None]
) -> tuple[int, bool]:
    """Delete batch by batch: how many rows, and whether nothing is left."""
    deleted = 0
    while True:
        with _explained(store), transaction.atomic(using=store.alias, durable=True):
            count = delete()
        if count:
            deleted, limits.batches = deleted + count, limits.batches + 1
            progress(deleted)
        if count < batch_size:
            return deleted, True
        if limits.reached():
            return deleted, False


def preview(using: str | None = None) -> Cleanup:
    """What a cleanup would find now: `deleted` is how many keys have expired. Deletes nothing.

    `unstuck` keys are not counted as `stuck`. `given_up` also counts failed keys that need no attention, if they are as
    old. These are among the expired ones.
    """
    store = store_for(alias_for(using))
    with _explained(store):
        found = _attention(store)
        unstuck = harmless(using=store.alias)
        given_up = overdue(store).exclude(pk__in=unstuck.values("pk"))
        return Cleanup(
            deleted=store.count_expired(),
            batches=0,
            complete=False,
            stuck=found["stuck"] - unstuck.count(),
            in_doubt=found["in_doubt"],
            half_done=found["half_done"],
            given_up=given_up.count(),
            unstuck=unstuck.count(),
        )


def _attention(store: Store) -> dict[str, int]:
    lookups = {"stuck": stuck, "in_doubt": in_doubt, "half_done": half_done}
    return {name: lookup(using=store.alias).count() for name, lookup in lookups.items()}


@contextmanager
def _explained(store: Store) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        store.explain(error)
        raise


def _refuse_impossible(batch_size: int, max_batches: int | None, max_seconds: float | None, pause: float) -> None:
    for name, value, minimum in (
        ("batch_size", batch_size, 1),
        ("max_batches", max_batches, 1),
        ("max_seconds", max_seconds, 0),
        ("pause", pause, 0),
    ):
        if value is not None and not value >= minimum:  # NaN is neither above nor below
            raise ValueError(f"{name} must be at least {minimum}, not {value!r}.")
    if batch_size > MAX_BATCH_SIZE:
        raise ValueError(f"batch_size must be at most {MAX_BATCH_SIZE}, not {batch_size!r}.")
