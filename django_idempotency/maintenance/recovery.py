"""Take over each key that needs attention, and call the project's `reconcile` to find out what happened.

This completes keys whose clients never retry.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from threading import Event
from typing import Any, ClassVar, Literal

from django.conf import settings
from django.db.models import Count, Q

from ..engine.conf.fields import seconds_of
from ..engine.declare.registry import Declaration, registered
from ..engine.declare.wrappers import dotted_name
from ..engine.events import UNDECIDED, harmless
from ..engine.execution.bridge import synchronous
from ..engine.execution.claiming import claim_request_for
from ..engine.execution.operation import Operation
from ..engine.execution.runners import Work
from ..engine.protocol.digests import identify
from ..engine.protocol.error_text import describe, without_controls
from ..engine.protocol.outcomes import Finished, InDoubt, Unavailable, Verdict
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.sealing import unsealed
from ..engine.stores.states import Clock
from ..engine.stores.transactions import atomically
from ..exceptions import IdempotencyConfigurationError, NotDecryptable
from ..limits import is_limit
from ..models import IdempotencyKey
from .cleanup import is_over
from .decisions import Decision, with_decision
from .lookups import in_other_operations, needs_attention, refuse_out_of_range, same_row, unchanged_for, waits_since

OLDER_THAN = timedelta(minutes=15)
"""After this time, most clients have given up. Before that, a retry is better, because it carries the whole request."""
BY = "recover_idempotency_keys"
UNCLAIMED: dict[type, str] = {
    InDoubt: "a write is in doubt, or the view has ended its own transaction: a person has to decide",
    Unavailable: "the database cannot store a claim at the moment",
}
"""Why a recovery leaves a key as it is, although nobody else has claimed it."""
FASTER = "a retry, another recovery or a person was faster"
LEFT = "reconcile has left the key to the next retry."
"""The error text for a key that has no other error."""
Outcome = Literal["completed", "left", "failed", "passed", "would ask"]
logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a recovery did with one key, or with all the keys of an operation whose `reconcile` it cannot call.

    Attributes:
        reference: the key's reference in logs, or "" for all keys of the operation.
        operation: the name of the operation.
        outcome: "completed", "left" (the key still needs attention), "failed" (`reconcile` raised an error), "passed"
            (another worker was faster) or "would ask" (a dry run).
        reason: the reason for the outcome, in words.
        keys: how many keys had this outcome.
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
        failed: for how many keys `reconcile` raised an error.
        left: how many keys that were claimed more than `older_than` ago still need attention.
        young: how many keys need attention, but were claimed so recently that their clients may still retry.
        complete: whether every key was reached. False if a limit or `stop` ended the run.
    """

    completed: int
    failed: int
    left: int
    young: int = 0
    complete: bool


def recover_idempotency_keys(
    *,
    using: str | None = None,
    older_than: timedelta | float = OLDER_THAN,
    operations: Collection[str] = (),
    max_seconds: float | None = None,
    dry_run: bool = False,
    stop: Event | None = None,
    progress: Callable[[Asked], None] = lambda asked: None,
) -> Recovered:
    """Call the project's `reconcile` for each key that needs attention.

    Call it from cron, Celery beat or django.tasks, with no transaction open, because it opens its own. If several
    processes want the same key, only one gets it. If `reconcile` returns a result, the key is completed. If it returns
    None or raises an error, the key stays as it is, and a later run calls `reconcile` again once `older_than` seconds
    have passed. One line is logged for each key, or for a whole operation if its `reconcile` cannot be called.

    Args:
        using: database alias; default: the write alias of the key table.
        older_than: how long a key's state must have been unchanged, in seconds or as a timedelta.
        operations: names of operations, such as "POST orders/"; default: all.
        max_seconds: after this many seconds, stop as soon as the current key is finished.
        dry_run: only report the keys for which `reconcile` would be called.
        stop: once this event is set, the run stops as soon as the current key is finished. A signal handler may set it,
            but only on the first signal.
        progress: called with the outcome of each key.

    Returns:
        What was completed, and what still needs attention.

    Raises:
        ValueError: a number is out of range, or `operations` is a single string instead of a list.
        IdempotencyConfigurationError: a transaction is open, a view's options are invalid, the alias is unknown, or the
            database has no store.
        DatabaseError: the database reported an error. Keys completed before that stay completed.
    """
    age = seconds_of(older_than)
    refuse_out_of_range(0, max_seconds=max_seconds)
    if isinstance(operations, str):
        raise ValueError(f"operations={operations!r}: pass a list of names, such as [{operations!r}].")
    store, deadline = store_for(alias_for(using)), math.inf if max_seconds is None else time.monotonic() + max_seconds
    keys = needs_attention(using=store.alias)
    if operations:
        keys = keys.filter(operation__in=operations)
    old = unchanged_for(keys, age)
    # Imports the views, which registers their declarations.
    if views := getattr(settings, "ROOT_URLCONF", None):
        import_module(views)
    askable: dict[str, Declaration] = {}
    told: Counter[Outcome] = Counter()

    def tell(asked: Asked) -> None:
        told[asked.outcome] += 1
        _log(asked, store.alias)
        progress(asked)

    counts = dict(old.order_by("operation").values_list("operation").annotate(Count("pk")))
    # A name in `operations` may be wrong, so each one is checked, even if it has no keys.
    for operation, count in (dict.fromkeys(operations, 0) | counts).items():
        if isinstance(declared := _declared(operation), str):
            tell(Asked(reference="", operation=operation, outcome="left", reason=declared, keys=count))
        else:
            askable[operation] = declared
    # pop() starts with the key that has gone unchanged the longest. Calling `reconcile` sets `updated_at`, so the next
    # run reaches that key last.
    names = list(old.filter(operation__in=askable).values("key_hash", "scope_hash", "pk", "attempt"))[::-1]
    while names and not is_over(stop, deadline):
        row = IdempotencyKey.objects.using(store.alias).filter(**names.pop()).first()
        if row is not None:
            declared = askable[row.operation]
            would: tuple[Outcome, str] = "would ask", dotted_name(declared.options.reconcile)
            outcome, reason = _completed_elsewhere(row) or (would if dry_run else _outcome(store, row, declared))
            tell(Asked(reference=row.reference, operation=row.operation, outcome=outcome, reason=reason))
    counts = keys.aggregate(left=Count("pk", Q(created_at__lte=Clock(plus=-age))), all=Count("pk"))
    left, young = counts["left"], counts["all"] - counts["left"]
    return Recovered(completed=told["completed"], failed=told["failed"], left=left, young=young, complete=not names)


def can_be_asked(operation: str) -> bool:
    """Whether a recovery in this process could call `reconcile` for this operation."""
    return not isinstance(_declared(operation), str)


def ask(row: IdempotencyKey, *, by: str, reason: str) -> Asked:
    """Call `reconcile` now for one key that needs attention, as a recovery does. No transaction may be open.

    Args:
        row: the key as the person saw it.
        by, reason: who decided to call `reconcile`, and why. Both are stored with the key if `reconcile` completes it
            or records a step's result.

    Raises:
        IdempotencyConfigurationError: a transaction is open.
    """
    store, declared = store_for(str(row._state.db)), _declared(row.operation)
    told: tuple[Outcome, str]
    if isinstance(declared, str):
        told = "left", declared
    else:
        told = _completed_elsewhere(row) or _outcome(store, row, declared, by, reason)
    outcome, why = told
    asked = Asked(reference=row.reference, operation=row.operation, outcome=outcome, reason=why)
    _log(asked, store.alias)
    return asked


def _log(asked: Asked, using: str) -> None:
    facts = {"event": "recovery", "operation": asked.operation, "key_reference": asked.reference}
    with harmless():
        logger.info("Idempotency key %s", asked, extra=facts | {"database": using, "outcome": asked.outcome})


def _declared(operation: str) -> Declaration | str:
    """The declaration whose `reconcile` is called for an operation, or the reason why there is no such declaration."""
    declarations = registered(operation)
    if not declarations:
        return (
            "no imported view and no imported @once function has this operation= and a reconcile=. The keys wait "
            "until their clients retry or a person decides. Import a task's module with --import; run_once without the "
            "decorator cannot be found"
        )
    if any(declaration.by_request for declaration in declarations):
        return "its view decides its options for each request (get_idempotency_options)"
    if len(declarations) > 1:
        return "several views with different reconcile functions have this operation"
    try:
        _ = declarations[0].options
    except IdempotencyConfigurationError as error:
        return f"its options cannot be used: {error}"
    return declarations[0]


def _completed_elsewhere(row: IdempotencyKey) -> tuple[Outcome, str] | None:
    """Return "left" and the reason if the key was completed under another operation's name, otherwise None.

    A retry that arrives after a route was renamed runs under the new name. Its effects must not be repeated under the
    old name.
    """
    completed = IdempotencyKey.objects.using(row._state.db).filter(status=IdempotencyKey.Status.COMPLETED)
    _, other = next(in_other_operations([row], completed.filter(scope=row.scope)), (row, None))
    if other is None:
        return None
    return "left", (
        f"its caller's key is completed as {other.operation!r}. If that is the same request, close this key, "
        "after a refund if both were charged"
    )


@dataclass
class _Asking(Work[Any]):
    """Calls one key's `reconcile`, but never runs the work: a retry must do what `reconcile` doesn't settle."""

    row: IdempotencyKey
    declared: Declaration
    attempt: int = 0
    doubts: Sequence[str] = ()
    recorded: Sequence[str] = ()
    title: ClassVar[str] = BY

    def reconcile(self, operation: Operation) -> Finished[Any]:
        self.attempt = operation.attempt
        reconcile, in_doubt, lost = self.declared.options.reconcile, set(operation.in_doubt), set(operation.lost)
        try:
            returned = None if reconcile is None else synchronous(reconcile)(operation)
        finally:  # what `reconcile` has recorded is committed, even if it then raises
            self.doubts = operation.in_doubt
            self.recorded = sorted(in_doubt.difference(operation.in_doubt) | lost.difference(operation.lost))
        if returned is None:
            error = unsealed(self.row, "last_error", self.row.last_error)
            return Finished(value=None, verdict=Verdict.ROLL_BACK, reason=error or LEFT)
        return self.declared.reconciled(returned)

    def run(self, operation: Operation) -> Finished[Any]:
        raise NotImplementedError("Bug: `reconcile` has always returned something final.")


def _outcome(
    store: Store, row: IdempotencyKey, declared: Declaration, by: str = BY, why: str = ""
) -> tuple[Outcome, str]:
    identity = identify(scope=row.scope, operation=row.operation, key=row.key, stored=True)
    # No fingerprint is passed, so the stored one is kept; with `known_only`, a deleted key is not created again.
    request = replace(
        claim_request_for(declared.options, identity, None), known_only=True, wait=0, waits_since=waits_since(row)
    )
    asking, limit = _Asking(row, declared), None
    told: tuple[Outcome, str]
    try:
        told = _told(declared.options.runner.perform(request, asking, store.alias), asking)
    except Exception as error:
        if is_limit(error):
            told, limit = ("left", f"interrupted by {describe(error)}"), error  # the whole run must end
        elif asking.attempt:
            told = _failed(store, row, error)
        elif isinstance(error, NotDecryptable):  # the key was completed meanwhile
            return "left", str(error)
        else:
            raise
    if recorded := ", ".join(asking.recorded):
        told = told[0], f"reconcile has recorded {recorded}, and {told[1].removeprefix('reconcile ')}"
    if asking.attempt and (told[0] == "completed" or recorded):
        _remember(row, Decision(action="recover", by=by, reason=why, attempt=asking.attempt, detail=told[1]))
    if limit is not None:
        raise limit
    return told


def _failed(store: Store, row: IdempotencyKey, error: Exception) -> tuple[Outcome, str]:
    logger.exception("Idempotency key %s of %s: reconcile raised.", row.reference, row.operation)
    # A broken connection is replaced for the next key, but not within a TestCase's `atomic()` block.
    if not store.connection.in_atomic_block:
        store.connection.close_if_unusable_or_obsolete()
    return "failed", f"reconcile raised {describe(error)}"


def _told(outcome: Any, asking: _Asking) -> tuple[Outcome, str]:
    if not asking.attempt:
        unclaimed = UNCLAIMED.get(type(outcome))
        return ("passed", FASTER) if unclaimed is None else ("left", unclaimed)
    if isinstance(outcome, InDoubt) and outcome.undecided:
        return "left", f"{UNDECIDED} ({outcome.undecided})"
    if not isinstance(outcome, Finished):
        return "passed", FASTER
    if outcome.final is not None:
        return "completed", f"reconcile has answered {outcome.final.status_code}"
    left = f". In doubt: {', '.join(asking.doubts)}" if asking.doubts else ""
    if outcome.value is not None:  # several steps were in doubt, and `reconcile` has not recorded them all
        return "left", f"reconcile has answered{left}: its answer is not kept until it records each of them"
    return "left", f"reconcile has left the key to the next retry{left}"


def _remember(row: IdempotencyKey, made: Decision) -> None:
    """Store the findings of `reconcile` in the key's audit trail, not just in the log."""

    def remember() -> None:
        if (held := locked(same_row(row)).first()) is not None:
            # No entry is added to a trail that was damaged in the database.
            with suppress(NotDecryptable):
                same_row(row).update(decisions=with_decision(held, made))
                # A new `attention_at` changes the key's version, so a person who has seen the key must look again.
                same_row(row).filter(attention_at__isnull=False).update(attention_at=Clock())

    atomically(str(row._state.db), remember)
