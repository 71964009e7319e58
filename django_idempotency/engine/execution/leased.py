"""The leased promises: the claim commits first, the work commits step by step, and a crash leaves a trace."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from django.conf import settings
from django.db import DatabaseError, Error

from ...exceptions import ClaimLost, IdempotencyConfigurationError
from ..events import report
from ..protocol.error_text import describe
from ..protocol.outcomes import (
    Claimed,
    ClaimOutcome,
    ClaimRequest,
    Conflicted,
    Finished,
    Outcome,
    Resource,
    Unavailable,
    Verdict,
)
from ..stores import Store
from .durable import durable_transaction, reconnecting_once
from .operation import Operation
from .waiting import waited_for
from .work import Work

T = TypeVar("T")
_CHANGE = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE)\b", re.IGNORECASE)
logger = logging.getLogger("django_idempotency")


def run_leased(store: Store, wanted: ClaimRequest, work: Work[T]) -> Outcome[T]:
    """Run the work under a lease, one worker at a time.

    Commits the claim first, then runs the work with no transaction open. `Verdict.KEEP` completes the key. Anything
    else, also an exception, leaves the key failed with its steps, so that the next retry runs at once. Only a worker
    that dies makes the next retry wait for the lease.

    Raises:
        IdempotencyConfigurationError: inside a transaction.
    """
    claim = waited_for(lambda: _claim_once(store, replace(wanted, wait=0)), wanted.wait)
    if not isinstance(claim, Claimed):
        return claim
    # An abandoned attempt: the project may have found out a final result.
    asks = claim.abandoned or bool(claim.in_doubt)
    return run_claimed(store, wanted, claim, lambda of: (work.reconcile(of) if asks else None) or _run(store, work, of))


def run_claimed(
    store: Store, wanted: ClaimRequest, claim: Claimed, run: Callable[[Operation], Finished[T]]
) -> Outcome[T]:
    """Run one attempt under a claim that is committed, and complete or fail the key.

    Any exception fails the key, also a cancellation: the retry need not wait for the lease.
    """
    about = claim.resource
    try:
        event = "taken_over" if claim.abandoned else "claimed"
        report(event, wanted.identity, store.alias, attempt=claim.attempt, resource=about)
        operation = Operation(store, wanted, claim)
        try:
            finished = run(operation).about(operation.resource)
        finally:
            about = operation.resource
        with durable_transaction(store, "the end of a leased view"):
            if finished.verdict is Verdict.KEEP and finished.snapshot is not None:
                store.complete(claim, finished.snapshot, ttl=wanted.ttl)
            else:
                store.journal.fail(claim, wanted, finished.reason)
    except ClaimLost:
        # A zombie: the worker that has taken over decides what this client is told.
        return store.look(wanted)
    except BaseException as error:
        if _fail(store, wanted, claim, about, error) or not isinstance(error, Exception):
            raise  # a cancellation must not become an answer
        return store.look(wanted)
    return finished


def _claim_once(store: Store, wanted: ClaimRequest) -> ClaimOutcome:
    for _ in range(2):
        try:
            # Nothing of a caller is in it, so it may be repeated.
            with durable_transaction(store, "a leased view"):
                return store.claim(wanted)
        except DatabaseError as error:
            if store.is_busy(error):
                return Unavailable()
            if not store.may_repeat(error):
                store.explain(error)
                raise
    return Conflicted()


def _run(store: Store, work: Work[T], operation: Operation) -> Finished[T]:
    try:
        with _warned_about_stray_writes(store, operation._begin()):
            finished = work.run(operation)
    except ClaimLost:
        raise
    except Exception as error:
        answered = work.answer(error)
        if answered is None:
            raise
        if answered.verdict is not Verdict.KEEP or not operation._may_end_with(error):
            return replace(answered, verdict=Verdict.ROLL_BACK, reason=describe(error))
        finished = answered
    if finished.verdict is Verdict.KEEP and (why := operation._left_behind()):
        return replace(finished, verdict=Verdict.ROLL_BACK, reason=why)
    return finished


def _fail(store: Store, wanted: ClaimRequest, claim: Claimed, about: Resource | None, error: BaseException) -> bool:
    """Fail the key because of this error. False: another worker has taken it over."""

    def fail() -> None:
        with durable_transaction(store, "the end of a leased view"):
            store.journal.fail(claim, wanted, describe(error))

    try:
        reconnecting_once(store, fail)
        report("released", wanted.identity, store.alias, reason=describe(error), resource=about)
    except ClaimLost:
        return False
    except (Error, IdempotencyConfigurationError):
        logger.exception("Idempotency key row %s could not be released; it waits for its lease.", claim.id)
    return True


def _warned_about_stray_writes(store: Store, operation: Operation) -> AbstractContextManager[Any]:
    """With DEBUG, warn about each data change on the store's alias that no step covers: a retry would make it again."""
    if not settings.DEBUG:
        return nullcontext()

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not operation.writing and _CHANGE.match(str(sql)) and not store.owns(str(sql)):
            warnings.warn(
                f"A leased view changed data outside of operation.write(): {str(sql)[:200]!r}. "
                "A retry would do it again. Put it into a step: operation.write(name, function, …).",
                RuntimeWarning,
                stacklevel=2,
            )
        return execute(sql, params, many, context)

    return store.connection.execute_wrapper(watch)
