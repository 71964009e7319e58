"""Deleting expired keys: many short transactions, not one long transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from django.db import DatabaseError, transaction
from django.db.models import Value
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from ..engine.conf import resolve
from ..engine.events import report_purged
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.states import ATTENTION, EXPIRED, HARMLESS, STUCK, Clock, Later
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey
from .decisions import Decision, with_decision
from .resolution import DECIDED

BATCH_SIZE = 5000
"""Rows in one transaction: about 10 ms on PostgreSQL, below anything that live traffic notices."""
MAX_BATCH_SIZE = 2**31 - 1
"""More than a table has, and a LIMIT that each database takes."""
FAILED_AT_ONCE = 100
"""Each takes a statement of its own, and its row stays locked until the batch commits."""
LOOK = 0.1
"""Seconds between two looks at `stop` in a pause: a run that is told to end does so without a noticeable delay."""


BY = "cleanup_idempotency_keys"
REASON = "The lease was over, and nothing outside had been called."


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
    max_batches: int | None = None,
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
    run = _Run(store, limits=(max_batches, max_seconds, pause), stop=stop or Event())
    at_once, passed_over, not_before = min(batch_size, FAILED_AT_ONCE), set[int](), None

    def purge() -> int:
        nonlocal not_before
        count, not_before = store.purge(batch_size, not_before)
        return count

    deleted = 0
    unstuck = run.in_batches(at_once, lambda: fail_harmless(store.alias, at_once, passed_over))
    if run.complete:
        deleted = run.in_batches(batch_size, purge, progress)
    with _explained(store):
        found = _attention(store)
    counted = {"deleted": deleted, "unstuck": unstuck, **found}
    cleanup = Cleanup(batches=run.batches, complete=run.complete, **counted)
    report_purged(cleanup, store.alias)
    return cleanup


class _Run:
    """One run: its limits, how many batches it has deleted, and whether nothing is left."""

    def __init__(self, store: Store, limits: tuple[int | None, float | None, float], stop: Event) -> None:
        self.batches, self.complete = 0, False
        self._store, self._stop = store, stop
        self._max_batches, max_seconds, self._pause = limits
        self._deadline = None if max_seconds is None else time.monotonic() + max_seconds

    def in_batches(self, size: int, delete: Callable[[], int], progress: Callable[[int], None] = lambda _: None) -> int:
        """Delete batch by batch, each in a transaction of its own. How many rows it were."""
        deleted = 0
        while True:
            with _explained(self._store), transaction.atomic(using=self._store.alias, durable=True):
                count = delete()
            if count:
                deleted, self.batches = deleted + count, self.batches + 1
                progress(deleted)
            self.complete = count < size
            if self.complete or self.reached():
                return deleted

    def reached(self) -> bool:
        """Asked between two batches: rests for the pause, unless the run is over."""
        over = (self._max_batches is not None and self.batches >= self._max_batches) or (
            self._deadline is not None and time.monotonic() >= self._deadline
        )
        over = over or self._stopped_in_the_pause()
        self.complete = self.complete and not over
        return over

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


def fail_harmless(alias: str, batch_size: int, passed_over: set[int]) -> int:
    """Fail up to `batch_size` such keys in the current transaction, so that they alarm no more. How many it were.

    The next retry runs at once, and goes on from the steps that are kept. A worker that wakes up fails at its fence.
    Rows that another transaction holds are passed over, where the database can do that.

    Args:
        passed_over: ids of rows that this run has met and cannot fail. More are added.
    """
    keys = IdempotencyKey.objects.using(alias).filter(HARMLESS).order_by(*STUCK.order)
    rows = keys.only("key_hash", "scope_hash", "attempt", "decisions")
    failed = 0
    while failed < batch_size:
        wanted = batch_size - failed
        found = list(locked(rows.exclude(pk__in=passed_over), skip=True)[:wanted])
        for row in found:
            if fail_if_harmless(row):
                failed += 1
            else:
                passed_over.add(row.pk)
        if len(found) < wanted:
            break
    return failed


def fail_if_harmless(row: IdempotencyKey) -> bool:
    """Fail a key whose row is locked. False: it is not harmless, or its trail cannot be decrypted. It stays stuck then.

    It is kept for a `ttl` from now on, if the time that was set at the claim is over sooner.
    """
    at = timezone.now().isoformat(timespec="seconds")
    made = Decision(action="fail", at=at, by=BY, reason=REASON, attempt=row.attempt)
    try:
        trail = with_decision(row, row.decisions, made)
    except NotDecryptable:
        return False  # other keys need not wait for the missing encryption key
    # A worker may have started a call before its row was locked: the condition is asked again, under the lock.
    keys = IdempotencyKey.objects.using(row._state.db).filter(HARMLESS, pk=row.pk, attempt=row.attempt)
    same = keys.filter(key_hash=row.key_hash, scope_hash=row.scope_hash)
    changed = same.update(
        status=IdempotencyKey.Status.FAILED,
        locked_until=None,
        last_error=Coalesce("last_error", Value(DECIDED)),
        updated_at=Clock(),
        decisions=trail,
        expires_at=Greatest("expires_at", Later(resolve().ttl_seconds)),
    )
    return changed == 1


def preview(using: str | None = None) -> Cleanup:
    """What a cleanup would find now: `deleted` is how many keys have expired. Deletes nothing.

    `unstuck` keys are not counted as `stuck`.
    """
    store = store_for(alias_for(using))
    with _explained(store):
        keys, found = IdempotencyKey.objects.using(store.alias), _attention(store)
        unstuck = keys.filter(HARMLESS)
        return Cleanup(
            deleted=keys.filter(EXPIRED.condition).count(),
            batches=0,
            complete=False,
            stuck=found["stuck"] - unstuck.count(),
            in_doubt=found["in_doubt"],
            half_done=found["half_done"],
            unstuck=unstuck.count(),
        )


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
