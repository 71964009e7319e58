"""Leased mode: the claim is committed first, then each step of the work.

After a crash, the database still shows which steps were started and which have finished.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from django.conf import settings
from django.db import Error, connections

from ...exceptions import ClaimLost, IdempotencyConfigurationError, OutcomeUnknown
from ...limits import is_limit
from ..conf.options import LEASED_TTL
from ..events import report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Finished, InDoubt, Outcome, Resource, Verdict
from ..stores import Store
from ..stores.server_checks import OWN
from .claiming import claim_or_wait
from .commits import committed
from .ending import left_behind, may_end_with
from .memory import MemoryJournal
from .operation import Operation
from .runners import Runner, Work
from .table import Refused, TableJournal

T = TypeVar("T")
_CHANGE = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE)\b", re.IGNORECASE)
END = "the end of a leased view"
UNKNOWN = "The work answered, and it is unknown whether one of its steps took effect."
logger = logging.getLogger("django_idempotency")


class Leased(Runner):
    """This worker, and no other, holds the key's lease while the work runs.

    The claim is committed, and the work runs with no transaction open. A final result completes the key. After any
    other result, or an exception, the key is marked as failed: its steps are kept, and the next retry may run
    immediately. If the worker dies, the next retry has to wait for the lease to expire.
    """

    default: ClassVar = {"ttl": LEASED_TTL}
    has_steps = True

    @staticmethod
    def suits(backend: str | None, lease: Any) -> bool:
        return backend is None and lease is not None

    def described(self) -> str:
        policy = self.options.on_abandoned
        return "leased" if policy == "retry-keyed" else f"leased, {policy}"

    def journal(self, operation: str) -> MemoryJournal:
        return MemoryJournal(cast(str, self.alias()), self.options.lease_seconds or 0, operation)

    def run(self, store: Store, request: ClaimRequest, work: Work[T]) -> Outcome[T]:
        """See the base class. If a transaction is open, this raises `IdempotencyConfigurationError`.

        Exceptions and cancellations also mark the key as failed, so that the next retry need not wait for the lease to
        expire. This includes an exception that a signal handler raises during the claim's COMMIT, because the claim may
        have been committed by then.
        """
        hold, about, ended = _Hold(store, request), None, None
        try:
            claim = claim_or_wait(store, request, partial(committed, store, work.title, hold.claim))
            if not isinstance(claim, Claimed):
                return claim
            about, ended = claim.resource, "error"  # the work doesn't run until the steps have been read
            event = "taken_over" if claim.abandoned else "claimed"
            report(event, request.identity, store.alias, attempt=claim.attempt, resource=about)
            journal = TableJournal(store, request, claim)
            operation = Operation(request.identity, claim.attempt, claim.resource, journal)
            operation._begin(reconciling=True)
            ended = "released"
            try:
                # The project's `reconcile` runs first in a recovery, after an abandoned attempt, and if a call is in
                # doubt or its value is lost. If it returns a final result, the work doesn't run.
                asks = request.known_only or claim.abandoned or claim.in_doubt or operation.lost
                finished = (work.reconcile(operation) if asks else None) or _run(store, work, operation)
                if finished.verdict is Verdict.KEEP and (why := left_behind(operation)):
                    finished = replace(finished, verdict=Verdict.ROLL_BACK, reason=why)
            finally:
                about = operation.resource
            # If `reconcile` answered for a call without recording its result, the row still counts the call as unknown.
            settled = not operation.in_doubt
            return _ended(store, request, claim, replace(finished, resource=about), settled=settled)
        except BaseException as error:
            held = hold.after(error)
            if held is None or (ended is None and not is_limit(error)):
                raise  # see Note [Lost answers] about a claim whose COMMIT has failed
            if isinstance(error, ClaimLost):
                # Another worker took the key over, or a person made a decision about it. The client gets the same
                # response as a duplicate.
                return store.look(request)
            if not _released(store, request, held, error, ended, about) and not is_limit(error):
                return store.look(request)
            if isinstance(error, Refused):
                return InDoubt(attempt=held.attempt, resource=about, unkeyed=(error.step,))
            if isinstance(error, OutcomeUnknown) and operation._reconciling:
                return InDoubt(attempt=held.attempt, resource=about, undecided=describe(error))
            # Cancellations and failures to store the response are raised, too. A retry then completes the key without
            # repeating finished steps. With a backend, a retry would repeat the work. That mode therefore sends the
            # response even if it could not be stored.
            raise


@dataclass(slots=True)
class _Hold:
    """What this worker knows about its own claim of the key.

    Attributes:
        claimed: the claim, if it may have been committed.
        is_open: whether the worker has sent a claim and has not learned its outcome.
    """

    store: Store
    request: ClaimRequest
    claimed: Claimed | None = None
    is_open: bool = False

    def claim(self) -> ClaimOutcome:
        self.claimed, self.is_open = None, True  # an earlier try was rolled back
        outcome = self.store.claim(self.request, last=True)
        self.claimed = outcome if isinstance(outcome, Claimed) else None
        self.is_open = False
        return outcome

    def after(self, error: BaseException) -> Claimed | None:
        """Return the claim that this worker may hold after the exception, or None.

        If a limit struck before the worker learned the outcome of its claim, ask the database for the claim.
        """
        if self.claimed is None and self.is_open and is_limit(error):
            with suppress(Error):
                return self.store.unheard(self.request)
        return self.claimed


def _released(
    store: Store, request: ClaimRequest, held: Claimed, error: BaseException, event: str | None, about: Resource | None
) -> bool:
    """Mark the key as failed because of this exception. Return whether this worker still held the key."""
    try:
        committed(store, END, partial(store.journal.fail, held, request, describe(error)), twice=True)
        if event:
            report(event, request.identity, store.alias, reason=describe(error), resource=about)
    except ClaimLost:
        return False
    except (Error, IdempotencyConfigurationError):
        logger.exception("Idempotency key row %s could not be released; it waits for its lease.", held.id)
    return True


def _ended(store: Store, request: ClaimRequest, claim: Claimed, finished: Finished[T], *, settled: bool) -> Finished[T]:
    """Complete the key or mark it as failed. Raises `ClaimLost`."""
    if finished.final is not None:
        try:
            complete = store.complete_settled if settled else store.complete_for
            committed(store, END, partial(complete, claim, finished.final, request.ttl))
        except ClaimLost:
            if not settled:
                raise
            # Perhaps this worker no longer holds the key. Or perhaps the row counts an unfinished step that this worker
            # doesn't know about, because the COMMIT of the step's start succeeded but its confirmation was lost. `fail`
            # tells the two cases apart.
            finished = replace(finished, verdict=Verdict.ROLL_BACK, reason=UNKNOWN)
        else:
            return finished
    committed(store, END, partial(store.journal.fail, claim, request, finished.reason))
    return finished


def _run(store: Store, work: Work[T], operation: Operation) -> Finished[T]:
    operation._begin(reconciling=False)
    try:
        return warned_about_changes(
            [store.alias],
            "A leased view changed data outside of operation.write(): {!r}. "
            "A retry would do it again. Put it into a step: operation.write(name, function, …).",
            partial(work.run, operation),
            excused=lambda sql: operation._journal.writing or any(table in sql for table in OWN),
        )
    except (ClaimLost, Refused):
        raise  # the framework can't answer these, so the client gets the same response as a duplicate
    except Exception as error:
        answered = work.answer(error)
        if answered is None:
            raise
        if answered.verdict is not Verdict.KEEP or not may_end_with(operation, error):
            return replace(answered, verdict=Verdict.ROLL_BACK, reason=describe(error))
        return answered


def warned_about_changes(
    aliases: Iterable[str], text: str, run: Callable[[], T], *, excused: Callable[[str], bool] = lambda sql: False
) -> T:
    """Run the work. With DEBUG on, warn if it changes data in these databases, because a retry would repeat the change.

    `text` is a format string into which the beginning of the statement is inserted.
    """

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if _CHANGE.match(str(sql)) and not excused(str(sql)):
            warnings.warn(text.format(str(sql)[:200]), RuntimeWarning, stacklevel=2)
        return execute(sql, params, many, context)

    wrappers = [connections[alias].execute_wrappers for alias in (aliases if settings.DEBUG else ())]
    try:
        for each in wrappers:
            each.append(watch)
        return run()
    finally:
        for each in wrappers:
            if watch in each:
                each.remove(watch)
