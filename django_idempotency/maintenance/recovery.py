"""Recovery without the client: each key that needs attention is taken over, and its `reconcile` is asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Literal

from django.db import transaction
from django.utils import timezone

from ..endpoints.operations import Operations, Unrecoverable
from ..engine.conf import Idempotency
from ..engine.conf.fields import seconds_of
from ..engine.declare.callables import dotted_name
from ..engine.events import harmless
from ..engine.execution.recovering import Asking, ask, take_over
from ..engine.protocol.claims import ClaimRequest
from ..engine.protocol.digests import stored_identity
from ..engine.protocol.error_text import describe, without_controls
from ..engine.protocol.outcomes import Claimed, Finished, InDoubt, Verdict
from ..engine.protocol.snapshots import Snapshot
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.sealing import unseal
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey
from .decisions import Decision, with_decision
from .lookups import database_now, needs_attention, refuse_impossible_age, unchanged_for

OLDER_THAN = timedelta(minutes=15)
"""Longer than the retries of a usual client, which should come first: a retry has the whole request."""
BY = "recover_idempotency_keys"
FASTER = "a retry, another recovery or a person was faster"
LEFT = "reconcile has left the key to the next retry."
"""The last error of a key without another one."""
Outcome = Literal["completed", "left", "failed", "passed", "would ask"]
logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came of one key.

    Attributes:
        reference: names the key in logs.
        operation: its operation.
        outcome: "completed": retries get the answer. "left": it still needs attention. "failed": `reconcile` raised,
            and the key is as it was. "passed": another worker has it, or has settled it. "would ask": a dry run.
        reason: why, in words.
    """

    reference: str
    operation: str
    outcome: Outcome
    reason: str

    def __str__(self) -> str:
        return without_controls(f"{self.reference} {self.operation}: {self.outcome}, {self.reason}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a recovery did.

    Attributes:
        completed: how many keys were completed.
        failed: of how many keys `reconcile` raised.
        left: how many keys need attention after the run: of those that were claimed first longer ago than `older_than`.
        complete: whether every key was looked at; else a limit or `stop` has ended the run.
    """

    completed: int
    failed: int
    left: int
    complete: bool


def recover_idempotency_keys(
    *,
    using: str | None = None,
    older_than: timedelta | float = OLDER_THAN,
    operations: Collection[str] = (),
    limit: int | None = None,
    max_seconds: float | None = None,
    dry_run: bool = False,
    urlconf: str | None = None,
    stop: Event | None = None,
    progress: Callable[[Asked], None] = lambda asked: None,
) -> Recovered:
    """Ask `reconcile` about each key that needs attention, in the place of a client that does not come back.

    For cron, Celery beat or django.tasks. Several recoveries and retries may run at once: one of them gets the key.
    Each key is taken over under its fence, in transactions of its own, and must not be inside another one. What
    `reconcile` returns completes the key. After None, or an exception, the key waits as before. A key that was asked
    about is asked about again after another `older_than`. Logs one line for each key.

    Args:
        using: database alias; default: the write alias of the key table.
        older_than: seconds, or a timedelta, since the state of the key has changed last.
        operations: names of operations, such as "POST orders/"; default: all.
        limit: ask about that many keys at most, at least 1.
        max_seconds: stop after that many seconds, when the key at hand is done.
        dry_run: only say what would be asked.
        urlconf: dotted path, where the views are; default: the project's.
        stop: once set, this event ends the run when the key at hand is done. A signal handler may set it,
            but only for the first signal.
        progress: called with what came of each key.

    Returns:
        What was completed, and what needs attention still.

    Raises:
        ValueError: for impossible numbers, or one text as `operations`.
        IdempotencyConfigurationError: inside a transaction, for options of a view that cannot work, for an unknown
            alias, or a database without a store.
        DatabaseError: from the database. What was completed before stays completed.
    """
    _refuse_impossible(limit, max_seconds, seconds_of(older_than))
    if isinstance(operations, str):
        raise ValueError(f"operations={operations!r}: give a list of names, [{operations!r}].")
    store = store_for(alias_for(using))
    keys = needs_attention(using=store.alias)
    if operations:
        keys = keys.filter(operation__in=operations)
    now = database_now(keys)
    if now is None:
        return Recovered(completed=0, failed=0, left=0, complete=True)
    run = _Run(store, Operations(urlconf), progress, dry_run=dry_run)
    # What was asked about has changed, and so comes last the next time.
    oldest = unchanged_for(keys, seconds_of(older_than))
    listed = list(oldest.values_list("key_hash", "scope_hash", "pk", "attempt"))
    complete = run.through(listed, limit, max_seconds, stop or Event())
    left = keys.filter(created_at__lte=now - timedelta(seconds=seconds_of(older_than))).count()
    return Recovered(completed=run.completed, failed=run.failed, left=left, complete=complete)


class _Run:
    """One run, key by key."""

    def __init__(
        self, store: Store, operations: Operations, progress: Callable[[Asked], None], *, dry_run: bool
    ) -> None:
        self.completed = self.failed = self.asked = 0
        self._store = store
        self._operations = operations
        self._progress = progress
        self._dry_run = dry_run

    def through(
        self, keys: list[tuple[int, int, int, int]], limit: int | None, max_seconds: float | None, stop: Event
    ) -> bool:
        """Ask about each key, up to a limit. Whether every key was looked at."""
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        for key_hash, scope_hash, row_id, attempt in keys:
            # Only those that were asked about count: many keys without `reconcile` must not keep the others waiting.
            reached = limit is not None and self.asked >= limit
            if reached or stop.is_set() or (deadline is not None and time.monotonic() >= deadline):
                return False
            rows = IdempotencyKey.objects.using(self._store.alias).filter(
                key_hash=key_hash, scope_hash=scope_hash, pk=row_id, attempt=attempt
            )
            if (row := rows.first()) is not None:
                self._tell(row, *self._outcome(row))
        return True

    def _outcome(self, row: IdempotencyKey) -> tuple[Outcome, str]:
        found = self._operations.find(row.operation)
        if isinstance(found, Unrecoverable):
            return "left", found.reason
        self.asked += 1
        if self._dry_run:
            return "would ask", dotted_name(found.reconcile)
        wanted = _wanted(row, found.options)
        claim = take_over(self._store, wanted, row.attempt)
        if isinstance(claim, InDoubt):
            return "left", "a write is in doubt, or the view has ended its own transaction: a person decides"
        if not isinstance(claim, Claimed):
            return "passed", FASTER
        work = Asking(found.reconcile, found.finished, _last_error(row))
        try:
            outcome, reason = _answer(self._store, wanted, claim, work)
            if outcome == "completed" or work.recorded:
                self._remember(row, claim.attempt, reason)
            return outcome, reason
        except Exception as error:
            logger.exception("Idempotency key %s of %s: reconcile raised.", row.reference, row.operation)
            if not self._store.connection.in_atomic_block:  # as in a TestCase
                self._store.connection.close_if_unusable_or_obsolete()  # the next key gets another connection
            return "failed", f"reconcile raised {describe(error)}"

    def _remember(self, row: IdempotencyKey, attempt: int, reason: str) -> None:
        """Add what `reconcile` has found out to the key's trail, which lives longer than the log of this run."""
        rows = IdempotencyKey.objects.using(self._store.alias).filter(
            key_hash=row.key_hash, scope_hash=row.scope_hash, pk=row.pk
        )
        at = timezone.now().isoformat(timespec="seconds")
        made = Decision(action="recover", at=at, by=BY, attempt=attempt, detail=reason)
        with transaction.atomic(using=self._store.alias):
            if (locked := rows.select_for_update().first()) is not None:
                try:
                    rows.update(decisions=with_decision(locked, locked.decisions, made))
                except NotDecryptable:  # what reconcile has found out is kept all the same
                    text = "Idempotency key %s of %s: its trail has no entry about this recovery."
                    logger.exception(text, row.reference, row.operation)

    def _tell(self, row: IdempotencyKey, outcome: Outcome, reason: str) -> None:
        self.completed += outcome == "completed"
        self.failed += outcome == "failed"
        asked = Asked(reference=row.reference, operation=row.operation, outcome=outcome, reason=reason)
        with harmless():
            facts = {"event": "recovery", "operation": row.operation, "key_reference": row.reference}
            logger.info("Idempotency key %s", asked, extra={**facts, "database": self._store.alias, "outcome": outcome})
        self._progress(asked)


def _wanted(row: IdempotencyKey, options: Idempotency) -> ClaimRequest:
    return ClaimRequest(
        identity=stored_identity(scope=row.scope, operation=row.operation, key=row.key),
        fingerprint=None,  # the stored one stays
        ttl=options.ttl_seconds,
        lease=options.lease_seconds,
        repeats_calls=options.repeats_calls,
        policy=options.policy,
    )


def _last_error(row: IdempotencyKey) -> str:
    try:
        return unseal(row, "last_error", row.last_error) or LEFT
    except NotDecryptable as error:
        return describe(error)


def _answer(store: Store, wanted: ClaimRequest, claim: Claimed, work: Asking) -> tuple[Outcome, str]:
    match ask(store, wanted, claim, work):
        case Finished(verdict=Verdict.KEEP, snapshot=Snapshot(status_code=status)):
            return "completed", f"reconcile has answered {status}"
        case Finished():
            return "left", _what_is_left(work)
        case _:
            return "passed", FASTER


def _what_is_left(work: Asking) -> str:
    recorded = f"reconcile has recorded {', '.join(work.recorded)}, and" if work.recorded else "reconcile"
    doubts = f". In doubt: {', '.join(work.in_doubt)}" if work.in_doubt else ""
    return f"{recorded} has left the key to the next retry{doubts}"


def _refuse_impossible(limit: int | None, max_seconds: float | None, older_than: float) -> None:
    for name, value, minimum in (("limit", limit, 1), ("max_seconds", max_seconds, 0)):
        if value is not None and not value >= minimum:  # NaN is neither above nor below
            raise ValueError(f"{name} must be at least {minimum}, not {value!r}.")
    refuse_impossible_age(older_than)
