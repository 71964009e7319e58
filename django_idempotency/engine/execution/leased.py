"""The leased promises: the claim commits first, the work commits step by step, and a crash leaves a trace."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import Error, IntegrityError, transaction

from ...exceptions import ClaimLost, IdempotencyConfigurationError, ResultNotStorable, TransactionBroken
from ...models import IdempotencyStep
from ..events import report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimRequest, Finished, Outcome, Resource, Verdict
from ..stores import Store
from ..stores.server_checks import OWN
from .bridge import NoBridgeAbove
from .claiming import claimed, is_alone
from .operation import Operation, Work, as_kept, encode_step

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
    claim = claimed(store, partial(committed, store, "a leased view", partial(store.claim, wanted)), wanted.wait)
    if not isinstance(claim, Claimed):
        return claim
    # An abandoned attempt: the project may have found out a final result.
    asks = claim.abandoned or bool(claim.in_doubt)
    return run_claimed(store, wanted, claim, lambda of: (work.reconcile(of) if asks else None) or _run(store, work, of))


def run_claimed(
    store: Store, wanted: ClaimRequest, claim: Claimed, run: Callable[[LeasedOperation], Finished[T]]
) -> Outcome[T]:
    """Run one attempt under a claim that is committed, and complete or fail the key.

    Any exception fails the key, also a cancellation: the retry need not wait for the lease.
    """
    about, end = claim.resource, "the end of a leased view"
    try:
        event = "taken_over" if claim.abandoned else "claimed"
        report(event, wanted.identity, store.alias, attempt=claim.attempt, resource=about)
        operation = LeasedOperation(store, wanted, claim)
        try:
            finished = replace(run(operation), resource=operation.resource)
        finally:
            about = operation.resource
        if finished.verdict is Verdict.KEEP and finished.snapshot is not None:
            committed(store, end, partial(store.complete, claim, finished.snapshot, ttl=wanted.ttl))
        else:
            committed(store, end, partial(store.journal.fail, claim, wanted, finished.reason))
    except ClaimLost:
        return store.look(wanted)  # a zombie: the worker that has taken over decides what this client is told
    except BaseException as error:
        try:
            committed(store, end, partial(store.journal.fail, claim, wanted, describe(error)), twice=True)
            report("released", wanted.identity, store.alias, reason=describe(error), resource=about)
        except ClaimLost:
            if isinstance(error, Exception):
                return store.look(wanted)
        except (Error, IdempotencyConfigurationError):
            logger.exception("Idempotency key row %s could not be released; it waits for its lease.", claim.id)
        raise  # a cancellation must not become an answer
    return finished


def committed(store: Store, what: str, write: Callable[[], T], *, twice: bool = False) -> T:
    """Run `write` in a transaction that commits at its end. Inside the transaction of a `TestCase` it is a savepoint.

    Args:
        what: the subject of the error message, such as "operation.call('charge')".
        twice: if the database fails, run `write` again on a new connection. For writes that must not be lost, and are
            safe to run twice: the server may have closed a connection that lay idle during a long call.

    Raises:
        IdempotencyConfigurationError: inside another transaction of the store's alias.
    """
    if twice:
        return _reconnecting_once(store, lambda: committed(store, what, write))
    if not is_alone(store):
        raise IdempotencyConfigurationError(
            f"{what} was reached inside a transaction of database {store.alias!r}. Leased mode commits step by step, "
            "so that a crash leaves a trace of what was called. Remove the atomic(), set_autocommit(False) or raw "
            "BEGIN, which may be a middleware's, such as the RevisionMiddleware of django-reversion. Under "
            "ATOMIC_REQUESTS put @idempotent on the view function or on `dispatch`, use IdempotencyMixin, or add "
            "@transaction.non_atomic_requests."
        )
    with transaction.atomic(using=store.alias, durable=True):
        return write()


def _reconnecting_once(store: Store, write: Callable[[], T]) -> T:
    try:
        return write()
    except Error:
        if store.connection.in_atomic_block:
            raise  # inside a TestCase there is no other connection
        store.connection.close()
        return write()


def _run(store: Store, work: Work[T], operation: LeasedOperation) -> Finished[T]:
    operation._begin()
    try:
        with _warned_about_stray_writes(store, operation):
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


def _warned_about_stray_writes(store: Store, operation: LeasedOperation) -> AbstractContextManager[Any]:
    """With DEBUG, warn about each data change on the store's alias that no step covers: a retry would make it again."""
    if not settings.DEBUG:
        return nullcontext()

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not operation.writing and _CHANGE.match(str(sql)) and not any(table in str(sql) for table in OWN):
            warnings.warn(
                f"A leased view changed data outside of operation.write(): {str(sql)[:200]!r}. "
                "A retry would do it again. Put it into a step: operation.write(name, function, …).",
                RuntimeWarning,
                stacklevel=2,
            )
        return execute(sql, params, many, context)

    return store.connection.execute_wrapper(watch)


class LeasedOperation(Operation):
    """The operation of an attempt whose claim is committed. The journal keeps its steps, under its fence."""

    writing = False
    _doubts: set[str]
    _kept: dict[str, str | None]
    _broke: BaseException | None = None
    """What a `write` has raised."""

    def __init__(self, store: Store, wanted: ClaimRequest, claim: Claimed) -> None:
        self._store, self._journal, self._claim = store, store.journal, claim
        self._lease = wanted.lease or 0
        # The steps of earlier attempts: their workers cannot add steps any more.
        steps = store.journal.steps(claim) if claim.attempt > 1 else {}
        self._doubts = {name for name, (finished, _) in steps.items() if not finished}
        self._kept = {name: text for name, (finished, text) in steps.items() if finished}
        super().__init__(wanted.identity, claim.attempt, claim.resource, steps_on=store.alias)

    def renew(self) -> None:
        """Start the lease again from now."""
        self._journal.renew(self._claim, self._lease)

    def _keep_resource(self, resource: Resource) -> None:
        self._journal.refer(self._claim, resource)

    # --- calls and reads

    def _start(self, name: str) -> tuple[bool, Any]:
        known, value = super()._start(name)
        if not known:
            again, keyed = name in self._doubts, name in self._keyed
            start = partial(self._journal.start_call, self._claim, name, again=again, keyed=keyed)
            committed(self._store, f"operation.call({name!r})", start)
            self._doubts.add(name)
        return known, value

    def _finish(self, name: str, value: Any) -> Any:
        error = kept = None
        try:
            kept = encode_step(value)
        except ResultNotStorable as not_storable:
            error = not_storable  # the money has moved: keep that fact first
        finish = partial(self._journal.finish_call, self._claim, name, kept)
        committed(self._store, f"the end of operation.call({name!r})", finish, twice=True)
        self._doubts.discard(name)
        self._kept[name] = kept
        if kept is None:
            raise error or RuntimeError(f"Bug: the result of {name!r} was lost.")
        return as_kept(value, kept)

    def _note(self, name: str, error: BaseException) -> None:
        """Keep the reason why the call is in doubt, for the timeline. The call is in doubt without the reason, too."""
        with suppress(Exception):  # the call's own error is what the caller must see
            note = partial(self._journal.note_error, self._claim, name, describe(error))
            committed(self._store, f"the end of operation.call({name!r})", note)

    def _keep_fetched(self, name: str, value: Any) -> Any:
        kept = encode_step(value)
        # The server may have closed a connection that lay idle during a slow read.
        try:
            _reconnecting_once(self._store, partial(self._journal.keep_fetched, self._claim, name, kept))
        except IntegrityError:
            # Of two tries, the first may have been committed, and its answer lost.
            if self._store.connection.in_atomic_block or self._journal.steps(self._claim).get(name) != (True, kept):
                raise
        self._kept[name] = kept
        return as_kept(value, kept)

    # --- writes

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        about = self.resource

        def write() -> tuple[Any, str]:
            self._journal.start_write(self._claim, name)
            with NoBridgeAbove(), self._writing(name):
                value = function()
                kept = encode_step(value)
            self._journal.finish_write(self._claim, name, kept)
            return value, kept

        try:
            value, kept = committed(self._store, f"operation.write({name!r})", write)
        except BaseException as error:
            # The function's error, or that of the COMMIT: a constraint may be checked there.
            self._broke, self.resource = error, about
            # Its start is committed only if it has ended its own transaction. Then no 4xx may hide what it has written.
            with suppress(Error, ClaimLost):
                if name in self._journal.steps(self._claim):
                    self._doubts.add(name)
            raise
        self._kept[name] = kept
        return as_kept(value, kept)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        self.writing, lost = True, False
        try:
            yield
        finally:
            self.writing = False
            if self._store.has_no_transaction(self._store.connection):
                # What the function has written since its transaction ended is committed: the step must be, too.
                with suppress(IntegrityError):  # it is, if the end was a COMMIT
                    self._journal.start_write(self._claim, name)
                    lost = True
        if lost:
            raise TransactionBroken(
                f"The function of operation.write({name!r}) lost its transaction in the middle: by a raw ROLLBACK, by "
                "a constraint or trigger that says ROLLBACK, or with its connection, which the driver has made anew. "
                "What it wrote before that is lost, and what it wrote after that is committed. So the step is in "
                "doubt until a person decides about it."
            )

    def _may_end_with(self, error: Exception) -> bool:
        """Whether the final answer that a framework gives to this exception of the work may be kept.

        It may not if the exception may come from a call: then the answer is not final, with any status. And it may not
        if the exception comes from a `write` that was rolled back after other steps: then no person would see what
        these steps have done.
        """
        return not self._doubts and not (self._broke is error and self._kept)

    def _left_behind(self) -> str:
        """Why no answer of the work may complete the key, although it is final. Empty: it may.

        A call was made, and the work has answered as if nothing had happened: the work caught the error of a `write`,
        or answered before it asked for the steps of an earlier attempt. If the key were completed, no person would see
        that there is a charge without an order. Reads do not count. The rule does not bind `reconcile`.
        """
        if self._broke is None and not self._unasked:
            return ""  # the usual end asks no database
        kinds = self._journal.kinds(self._claim)
        unasked = ", ".join(sorted(name for name in self._unasked if kinds.get(name) != IdempotencyStep.Kind.FETCH))
        if IdempotencyStep.Kind.CALL not in kinds.values():
            return ""
        if self._broke is not None:
            return f"A write raised after a call was made, and the work answered all the same: {describe(self._broke)}"
        return unasked and (
            f"The work answered without asking for {unasked}, which an earlier attempt has recorded. Ask "
            "for the steps first: a condition of the view must not answer before them."
        )
