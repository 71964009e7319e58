"""The leased promises: the claim commits first, the work commits step by step, and a crash leaves a trace."""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from django.db import DatabaseError, Error

from ...exceptions import ClaimLost
from ..events import CLAIMED, RELEASED, TAKEN_OVER, tell, tell_answer
from ..protocol.claims import ClaimRequest
from ..protocol.error_text import describe
from ..protocol.outcomes import Answer, Claimed, ClaimOutcome, Conflicted, Finished, Raised, Unavailable, Verdict
from ..stores import Store
from .durable import on_a_fresh_connection_if_need_be, own_transaction
from .operation import Operation
from .stray_writes import warned_about

T = TypeVar("T")
Reconcile = Callable[[Operation], Finished[T] | None]
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two looks of a waiting duplicate: soon enough for a fast view, few queries for a slow one."""
logger = logging.getLogger("django_idempotency")


def run_leased(
    store: Store,
    claim: ClaimRequest,
    work: Callable[[Operation], Finished[T] | Raised],
    answer: Callable[[Exception], Finished[T]],
    reconcile: Reconcile[T] | None = None,
) -> Answer[T]:
    """Run `work` for this claim under a lease, one worker at a time.

    Commits the claim first, then runs `work` with no transaction open; raises `IdempotencyConfigurationError` inside
    one. `answer` turns an exception of the work into a finished answer, or raises it. `reconcile` is asked when the
    key was abandoned: a finished answer, or None to run the work again.

    Whatever is not finished by `Verdict.KEEP`, and any exception at all, leaves the key failed with its steps, so that
    the next retry runs at once. Only a worker that dies makes it wait for the lease.
    """
    answered = _run(store, claim, work, answer, reconcile)
    tell_answer(answered, claim.identity, store.alias)
    return answered


def _run(
    store: Store,
    claim: ClaimRequest,
    work: Callable[[Operation], Finished[T] | Raised],
    answer: Callable[[Exception], Finished[T]],
    reconcile: Reconcile[T] | None,
) -> Answer[T]:
    outcome = _claim(store, claim)
    if not isinstance(outcome, Claimed):
        return outcome
    try:
        with _terminable(), _failing(store, claim, outcome):
            tell(TAKEN_OVER if outcome.abandoned else CLAIMED, claim.identity, store.alias, attempt=outcome.attempt)
            finished = _finish(store, claim, outcome, work, answer, reconcile)
            if finished.verdict is Verdict.KEEP and finished.snapshot is not None:
                store.complete(outcome, finished.snapshot, ttl=claim.ttl)
            else:
                store.fail(outcome, claim, finished.reason)
    except ClaimLost:
        # A zombie: whoever has taken over decides what this client is told.
        return store.look(claim)
    return finished


def _claim(store: Store, claim: ClaimRequest) -> ClaimOutcome:
    """Claim, and while somebody else is at work, look again for up to `wait` seconds, with no transaction open."""
    deadline = time.monotonic() + claim.wait
    pause = FIRST_PAUSE
    while True:
        outcome = _claim_once(store, replace(claim, wait=0))
        left = deadline - time.monotonic()
        if not isinstance(outcome, Conflicted) or left <= 0:
            return outcome
        # Jittered, so that fifty duplicates do not all look at the same moment.
        time.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # noqa: S311 (no secret)
        pause = min(2 * pause, LONGEST_PAUSE)


def _claim_once(store: Store, claim: ClaimRequest) -> ClaimOutcome:
    for _ in range(2):
        try:
            with own_transaction(store, "a leased view"):
                return store.claim(claim)
        except DatabaseError as error:
            if store.is_busy(error):
                return Unavailable()
            if not store.may_repeat(error):
                store.explain(error)
                raise
    return Conflicted()


def _finish(
    store: Store,
    claim: ClaimRequest,
    claimed: Claimed,
    work: Callable[[Operation], Finished[T] | Raised],
    answer: Callable[[Exception], Finished[T]],
    reconcile: Reconcile[T] | None,
) -> Finished[T]:
    if reconcile is not None and (claimed.abandoned or claimed.in_doubt):
        reconciled = reconcile(Operation(store, claim, claimed))
        if reconciled is not None:
            return reconciled
    operation = Operation(store, claim, claimed)
    with warned_about(store, operation):
        result = work(operation)
    if isinstance(result, Finished):
        return result
    if isinstance(result.error, ClaimLost):
        raise result.error
    finished = answer(result.error)
    if finished.verdict is Verdict.KEEP and not operation.in_doubt:
        return finished
    # An exception that may have come out of a call says nothing final, whatever status the framework gives it.
    return replace(finished, verdict=Verdict.ROLL_BACK, reason=describe(result.error))


@contextmanager
def _failing(store: Store, claim: ClaimRequest, claimed: Claimed) -> Iterator[None]:
    """Whatever goes wrong, even a cancelled task or a terminated process: do not leave the key to its lease."""
    try:
        yield
    except ClaimLost:
        raise
    except Exception as error:
        _fail(store, claim, claimed, error)
        raise
    except BaseException as error:
        with suppress(ClaimLost):  # who cancels or terminates us must not be answered instead
            _fail(store, claim, claimed, error)
        raise


def _fail(store: Store, claim: ClaimRequest, claimed: Claimed, error: BaseException) -> None:
    try:
        on_a_fresh_connection_if_need_be(store, lambda: store.fail(claimed, claim, describe(error)))
        tell(RELEASED, claim.identity, store.alias, reason=describe(error))
    except Error:
        logger.exception("Idempotency key row %s could not be released; it waits for its lease.", claimed.id)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise, where it would otherwise end the process on the spot: a command on cron, a script.

    Servers and task queues have handlers of their own; those stay.
    """
    plain = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not plain:
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
