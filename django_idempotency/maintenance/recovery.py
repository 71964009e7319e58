"""Recovery without the client: each key that needs attention is taken over, and its `reconcile` is asked."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Count
from django.utils import timezone

from ..engine.conf import Idempotency
from ..engine.conf.fields import seconds_of
from ..engine.declare.callables import dotted_name
from ..engine.declare.registry import Declaration, registered
from ..engine.events import harmless, report_outcome
from ..engine.execution.durable import durable_transaction
from ..engine.execution.leased import run_claimed
from ..engine.execution.operation import Operation
from ..engine.execution.steps import synchronous
from ..engine.protocol.digests import stored_identity
from ..engine.protocol.error_text import describe, without_controls
from ..engine.protocol.outcomes import Claimed, ClaimRequest, Conflicted, Finished, InDoubt, Snapshot, Verdict
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.sealing import unseal
from ..engine.stores.states import Later
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey
from .decisions import Decision, with_decision
from .lookups import needs_attention, refuse_impossible_age, unchanged_for

if TYPE_CHECKING:
    from django.db.models import QuerySet

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
    """What came of one key, or of all keys of an operation about which nothing can be asked.

    Attributes:
        reference: names the key in logs. Empty: nothing can be asked about any key of the operation.
        operation: its operation.
        outcome: "completed": retries get the answer. "left": it still needs attention. "failed": `reconcile` raised,
            and the key is as it was. "passed": another worker has it, or has settled it. "would ask": a dry run.
        reason: why, in words.
        keys: how many keys it is about.
    """

    reference: str
    operation: str
    outcome: Outcome
    reason: str
    keys: int = 1

    def __str__(self) -> str:
        what = self.reference or f"{self.keys} key{'' if self.keys == 1 else 's'} of"
        return without_controls(f"{what} {self.operation}: {self.outcome}, {self.reason}.")


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
    about is asked about again after another `older_than`. Logs one line for each key that was asked about, and one for
    each operation about whose keys nothing can be asked.

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
    age = seconds_of(older_than)
    _refuse_impossible(limit, max_seconds, age)
    if isinstance(operations, str):
        raise ValueError(f"operations={operations!r}: give a list of names, [{operations!r}].")
    store = store_for(alias_for(using))
    keys = needs_attention(using=store.alias)
    if operations:
        keys = keys.filter(operation__in=operations)
    _import_views(urlconf)
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    # What was asked about has changed, and so comes last the next time.
    old = unchanged_for(keys, age)
    askable: dict[str, Declaration] = {}
    told: Counter[Outcome] = Counter()

    def tell(asked: Asked) -> None:
        told[asked.outcome] += 1
        _log(asked, store.alias)
        progress(asked)

    for operation, count in old.order_by("operation").values_list("operation").annotate(Count("pk")):
        if isinstance(declared := _declared(operation), str):
            tell(Asked(reference="", operation=operation, outcome="left", reason=declared, keys=count))
        else:
            askable[operation] = declared
    rows = old.filter(operation__in=askable).values_list("key_hash", "scope_hash", "pk", "attempt")
    complete = True
    for number, (key_hash, scope_hash, row_id, attempt) in enumerate(list(rows)):
        late = deadline is not None and time.monotonic() >= deadline
        if late or number == limit or (stop is not None and stop.is_set()):
            complete = False
            break
        row = _same(store.alias, key_hash, scope_hash, row_id).filter(attempt=attempt).first()
        if row is not None:
            outcome, reason = _outcome(store, row, askable[row.operation], dry_run=dry_run)
            tell(Asked(reference=row.reference, operation=row.operation, outcome=outcome, reason=reason))
    left = keys.filter(created_at__lte=Later(-age)).count()
    return Recovered(completed=told["completed"], failed=told["failed"], left=left, complete=complete)


def _import_views(urlconf: str | None) -> None:
    """What a view declares is registered when its module is imported."""
    name = urlconf or getattr(settings, "ROOT_URLCONF", None)
    if name is not None:
        import_module(name)


def _declared(operation: str) -> Declaration | str:
    """Who can be asked about the keys of an operation; or why nothing can be asked."""
    found = registered(operation)
    if not found:
        return (
            "no imported view and no imported @once function has this operation= and a reconcile=. The keys wait for a "
            "retry of their clients, or for a person. Import a task's module with --import; run_once without the "
            "decorator cannot be found"
        )
    if any(declaration.by_request for declaration in found):
        return "its view decides its options for each request (get_idempotency_options)"
    if len(found) > 1:
        return "several views have this operation, with different reconcile"
    return found[0] if found[0].options.lease is not None else "its view has no lease"


def _outcome(store: Store, row: IdempotencyKey, declared: Declaration, *, dry_run: bool) -> tuple[Outcome, str]:
    options = declared.options
    if dry_run:
        return "would ask", dotted_name(options.reconcile)
    wanted = _wanted(row, options)
    claim = take_over(store, wanted, row.attempt)
    if isinstance(claim, InDoubt):
        return "left", "a write is in doubt, or the view has ended its own transaction: a person decides"
    if not isinstance(claim, Claimed):
        return "passed", FASTER
    asking = _Asking(declared, _last_error(row))
    try:
        outcome = run_claimed(store, wanted, claim, asking.run)
        report_outcome(outcome, wanted.identity, store.alias)
    except Exception as error:
        logger.exception("Idempotency key %s of %s: reconcile raised.", row.reference, row.operation)
        if not store.connection.in_atomic_block:  # as in a TestCase
            store.connection.close_if_unusable_or_obsolete()  # the next key gets another connection
        return "failed", f"reconcile raised {describe(error)}"
    match outcome:
        case Finished(verdict=Verdict.KEEP, snapshot=Snapshot(status_code=status)):
            reason = f"reconcile has answered {status}"
            _remember(store.alias, row, claim.attempt, reason)
            return "completed", reason
        case Finished():
            if asking.recorded:
                _remember(store.alias, row, claim.attempt, asking.what_is_left)
            return "left", asking.what_is_left
        case _:
            return "passed", FASTER


def _remember(alias: str, row: IdempotencyKey, attempt: int, reason: str) -> None:
    """Add what `reconcile` has found out to the key's trail, which lives longer than the log of this run."""
    rows = _same(alias, row.key_hash, row.scope_hash, row.pk)
    at = timezone.now().isoformat(timespec="seconds")
    made = Decision(action="recover", at=at, by=BY, attempt=attempt, detail=reason)
    with transaction.atomic(using=alias):
        if (held := locked(rows).first()) is not None:
            try:
                rows.update(decisions=with_decision(held, held.decisions, made))
            except NotDecryptable:  # what reconcile has found out is kept all the same
                text = "Idempotency key %s of %s: its trail has no entry about this recovery."
                logger.exception(text, row.reference, row.operation)


def _same(alias: str, key_hash: int, scope_hash: int, row_id: int) -> QuerySet[IdempotencyKey]:
    """By its hashes, too: an id alone may name several rows of a partitioned table."""
    return IdempotencyKey.objects.using(alias).filter(key_hash=key_hash, scope_hash=scope_hash, pk=row_id)


def _log(asked: Asked, alias: str) -> None:
    facts = {"event": "recovery", "operation": asked.operation, "key_reference": asked.reference}
    with harmless():
        logger.info("Idempotency key %s", asked, extra={**facts, "database": alias, "outcome": asked.outcome})


class _Asking:
    """`reconcile` in the place of the work.

    Args:
        declared: whose `reconcile` gets the operation, which has no request.
        last_error: what the key keeps as its last error if `reconcile` returns None.
    """

    def __init__(self, declared: Declaration, last_error: str) -> None:
        self._declared, self._last_error = declared, last_error
        self.recorded: tuple[str, ...] = ()
        self._in_doubt: tuple[str, ...] = ()

    def run(self, operation: Operation) -> Finished[Any]:
        """Ask. None leaves the key to the next retry, with the steps as `reconcile` has left them."""
        before, reconcile = operation.in_doubt, self._declared.options.reconcile
        returned = None if reconcile is None else synchronous(reconcile)(operation)
        self._in_doubt = operation.in_doubt
        self.recorded = tuple(name for name in before if name not in self._in_doubt)
        if returned is None:
            return Finished(value=None, verdict=Verdict.ROLL_BACK, reason=self._last_error)
        return self._declared.finished(returned)

    @property
    def what_is_left(self) -> str:
        recorded = f"reconcile has recorded {', '.join(self.recorded)}, and" if self.recorded else "reconcile"
        doubts = f". In doubt: {', '.join(self._in_doubt)}" if self._in_doubt else ""
        return f"{recorded} has left the key to the next retry{doubts}"


def take_over(store: Store, wanted: ClaimRequest, attempt: int) -> Claimed | Conflicted | InDoubt:
    """Claim a key that needs attention, if it is still at this attempt. Commits, and must not run inside a transaction.

    Raises:
        IdempotencyConfigurationError: inside a transaction, or if a migration is missing.
        DatabaseError: from the database. Nothing was changed.
    """
    try:
        with durable_transaction(store, "recover_idempotency_keys"):
            return store.resume(wanted, attempt)
    except DatabaseError as error:
        if store.is_busy(error) or store.may_repeat(error):
            return Conflicted()
        store.explain(error)
        raise


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


def _refuse_impossible(limit: int | None, max_seconds: float | None, older_than: float) -> None:
    for name, value, minimum in (("limit", limit, 1), ("max_seconds", max_seconds, 0)):
        if value is not None and not value >= minimum:  # NaN is neither above nor below
            raise ValueError(f"{name} must be at least {minimum}, not {value!r}.")
    refuse_impossible_age(older_than)
