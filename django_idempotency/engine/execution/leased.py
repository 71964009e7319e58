"""The leased promises: the claim commits first, the work commits step by step, and a crash leaves a trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from django.db import DatabaseError, Error

from ...exceptions import ClaimLost, IdempotencyConfigurationError
from ..events import report
from ..protocol.claims import ClaimRequest
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimOutcome, Conflicted, Finished, Outcome, Unavailable, Verdict
from ..stores import Store
from .durable import durable_step, reconnecting_once
from .operation import Operation
from .stray_writes import warned_about
from .waiting import waited_for
from .work import Work

T = TypeVar("T")
logger = logging.getLogger("django_idempotency")


def run_leased(store: Store, wanted: ClaimRequest, work: Work[T]) -> Outcome[T]:
    """Run the work under a lease, one worker at a time. See `execute`.

    Commits the claim first, then runs the work with no transaction open. `Verdict.KEEP` completes the key. Anything
    else, also an exception, leaves the key failed with its steps, so that the next retry runs at once. Only a worker
    that dies makes the next retry wait for the lease.

    Raises:
        IdempotencyConfigurationError: inside a transaction.
    """
    claim = waited_for(lambda: _claim_once(store, wanted), wanted.wait)
    return run_claimed(store, wanted, claim, work) if isinstance(claim, Claimed) else claim


def run_claimed(store: Store, wanted: ClaimRequest, claim: Claimed, work: Work[T]) -> Outcome[T]:
    """Run the work under a claim that is committed."""
    try:
        with _attempt(store, wanted, claim) as operation:
            finished = _reconciled(claim, work, operation) or _run(store, work, operation._begun_again())
            finished = finished.about(operation.resource)
            with durable_step(store, "the end of a leased view"):
                if finished.verdict is Verdict.KEEP and finished.snapshot is not None:
                    store.complete(claim, finished.snapshot, ttl=wanted.ttl)
                else:
                    store.fail(claim, wanted, finished.reason)
    except ClaimLost:
        # A zombie: the worker that has taken over decides what this client is told.
        return store.look(wanted)
    return finished


def _claim_once(store: Store, wanted: ClaimRequest) -> ClaimOutcome:
    for _ in range(2):
        try:
            # Nothing of a caller is in it, so it may be repeated.
            with durable_step(store, "a leased view"):
                return store.claim_and_commit(wanted)
        except DatabaseError as error:
            if store.is_busy(error):
                return Unavailable()
            if not store.may_repeat(error):
                store.explain(error)
                raise
    return Conflicted()


def _reconciled(claim: Claimed, work: Work[T], operation: Operation) -> Finished[T] | None:
    """What the project found out about an abandoned attempt, if it has found a final result."""
    if not (claim.abandoned or claim.in_doubt):
        return None
    return work.reconcile(operation)


def _run(store: Store, work: Work[T], operation: Operation) -> Finished[T]:
    try:
        with warned_about(store, operation):
            return work.run(operation)
    except ClaimLost:
        raise
    except Exception as error:
        answered = work.answer(error)
        if answered is None:
            raise
        if answered.verdict is Verdict.KEEP and operation._may_end_with(error):
            return answered
        return replace(answered, verdict=Verdict.ROLL_BACK, reason=describe(error))


@contextmanager
def _attempt(store: Store, wanted: ClaimRequest, claim: Claimed) -> Iterator[Operation]:
    """One attempt. Any exception fails the key, also a cancellation: its retry need not wait for the lease."""
    event, operation = "taken_over" if claim.abandoned else "claimed", None
    try:
        report(event, wanted.identity, store.alias, attempt=claim.attempt, resource=claim.resource)
        operation = Operation(store, wanted, claim)
        yield operation
    except ClaimLost:
        raise
    except Exception as error:
        _fail(store, wanted, claim, operation, error)
        raise
    except BaseException as error:
        with suppress(ClaimLost):  # a cancellation must not become an answer
            _fail(store, wanted, claim, operation, error)
        raise


def _fail(
    store: Store, wanted: ClaimRequest, claim: Claimed, operation: Operation | None, error: BaseException
) -> None:
    resource = claim.resource if operation is None else operation.resource

    def fail() -> None:
        with durable_step(store, "the end of a leased view"):
            store.fail(claim, wanted, describe(error))

    try:
        reconnecting_once(store, fail)
        report("released", wanted.identity, store.alias, reason=describe(error), resource=resource)
    except (Error, IdempotencyConfigurationError):
        logger.exception("Idempotency key row %s could not be released; it waits for its lease.", claim.id)
