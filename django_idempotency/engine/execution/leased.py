"""In leased mode, the package first commits the claim, and then commits the work step by step.

So after a crash, the database shows which steps were started and which steps were finished.
"""

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
    """Run the work while this worker has the lease of the key. Only one worker at a time can have the lease.

    The function first commits the claim, and then runs the work while no transaction is open. If the work returns a
    final result, the key is completed. If the result is not final, the key is marked as failed. If the work raises an
    exception, the key is also marked as failed. The steps of a failed key are kept, and the next retry can run
    immediately. If the worker dies, the next retry must wait until the lease ends.

    Raises:
        IdempotencyConfigurationError: a transaction is open already.
    """
    claim = claimed(store, partial(committed, store, "a leased view", partial(store.claim, wanted)), wanted.wait)
    if not isinstance(claim, Claimed):
        return claim
    # If an earlier attempt was abandoned, or if one of its calls is in doubt, the package first runs the project's
    # function `reconcile`. If this function returns a final result, the work does not run.
    asks = claim.abandoned or bool(claim.in_doubt)
    return run_claimed(store, wanted, claim, lambda of: (work.reconcile(of) if asks else None) or _run(store, work, of))


def run_claimed(
    store: Store, wanted: ClaimRequest, claim: Claimed, run: Callable[[LeasedOperation], Finished[T]]
) -> Outcome[T]:
    """Run an attempt whose claim is already committed. After the attempt, mark the key as completed or as failed.

    If the work raises an exception or is cancelled, the key is marked as failed. Then the next retry does not have to
    wait until the lease ends.
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
        # Another worker has taken over the key, or a person has decided about the key. So the client gets the answer
        # that a duplicate would get now.
        return store.look(wanted)
    except BaseException as error:
        try:
            committed(store, end, partial(store.journal.fail, claim, wanted, describe(error)), twice=True)
            report("released", wanted.identity, store.alias, reason=describe(error), resource=about)
        except ClaimLost:
            if isinstance(error, Exception):
                return store.look(wanted)
        except (Error, IdempotencyConfigurationError):
            logger.exception("Idempotency key row %s could not be released; it waits for its lease.", claim.id)
        raise  # the caller must get every error, also a cancellation
    return finished


def committed(store: Store, what: str, write: Callable[[], T], *, twice: bool = False) -> T:
    """Call the function `write` in a transaction, and commit the transaction. In a Django `TestCase`, the function runs
    in a savepoint.

    Args:
        what: the subject of the error message, for example "operation.call('charge')".
        twice: True for a write that must not be lost and that is safe to run twice. If the database fails, `write` runs
            again on a new connection, because some servers close connections that are idle during a long call.

    Raises:
        IdempotencyConfigurationError: another transaction is open on the store's alias.
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
            raise  # this connection has the transaction of a TestCase, so the connection must stay open
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
    """If DEBUG is on, warn about each SQL statement that changes data outside of `operation.write()`.

    A retry would run such a statement again, because the statement does not belong to a `write` step.
    """
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
    """In leased mode, the work gets an object of this class. The journal stores the steps of the operation."""

    writing = False
    _doubts: set[str]
    _kept: dict[str, str | None]
    _broke: BaseException | None = None
    """The exception that a `write` has raised."""

    def __init__(self, store: Store, wanted: ClaimRequest, claim: Claimed) -> None:
        self._store, self._journal, self._claim = store, store.journal, claim
        self._lease = wanted.lease or 0
        # At the beginning of an attempt, the attributes `_doubts` and `_kept` contain the steps of earlier attempts. A
        # worker of an earlier attempt cannot add steps any more. When this attempt runs a step, for example in
        # `reconcile`, the step is added to `_doubts` or `_kept`.
        steps = store.journal.steps(claim) if claim.attempt > 1 else {}
        self._doubts = {name for name, (finished, _) in steps.items() if not finished}
        self._kept = {name: text for name, (finished, text) in steps.items() if finished}
        super().__init__(wanted.identity, claim.attempt, claim.resource, steps_on=store.alias)

    def renew(self) -> None:
        """Start the lease again with its full length."""
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
            # The external call is done, but its result cannot be stored. So the package first records that the call is
            # done, and then raises the error.
            error = not_storable
        finish = partial(self._journal.finish_call, self._claim, name, kept)
        committed(self._store, f"the end of operation.call({name!r})", finish, twice=True)
        self._doubts.discard(name)
        self._kept[name] = kept
        if kept is None:
            raise error or RuntimeError(f"Bug: the result of {name!r} was lost.")
        return as_kept(value, kept)

    def _note(self, name: str, error: BaseException) -> None:
        """Store the error of a call in doubt, so that the timeline of the key can show the error.

        If the database cannot store the error, this method raises nothing, and the call stays in doubt.
        """
        with suppress(Exception):  # the work must get the error of the call, not an error of this method
            note = partial(self._journal.note_error, self._claim, name, describe(error))
            committed(self._store, f"the end of operation.call({name!r})", note)

    def _keep_fetched(self, name: str, value: Any) -> Any:
        kept = encode_step(value)
        # A `fetch` can be slow, and some database servers close a connection that is idle for a long time. So if the
        # result cannot be stored, the package tries again on a new connection.
        try:
            _reconnecting_once(self._store, partial(self._journal.keep_fetched, self._claim, name, kept))
        except IntegrityError:
            # Perhaps the first INSERT was committed, but the server's answer was lost. Then the second INSERT raises
            # IntegrityError.
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
            # The function of the step can raise this error. The COMMIT can also raise this error, because a database
            # checks some constraints only at COMMIT.
            self._broke, self.resource = error, about
            # A row for this `write` step is already in the table, so the step's function must have ended the step's
            # transaction. Then perhaps the function's changes are committed in the database, so the step is in doubt. A
            # 4xx answer must not complete a key that has a step in doubt.
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
                # This `write` step has called a function, and this function has committed or rolled back the
                # transaction of the step. After that, the database commits each statement of the function separately.
                # So the start of the step must be committed, too. Perhaps the function has sent a COMMIT itself. Then
                # this row is already stored.
                with suppress(IntegrityError):
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
        """Return True if the package can store the framework's answer to this exception as the final answer.

        If a step is in doubt and the work raises an exception, no answer is stored, because perhaps this step has
        raised the exception. Even a 4xx answer is not stored. If a `write` step has raised the exception and other
        steps are finished, no answer is stored. A stored answer would complete the key. Then no person would check the
        effects of the finished steps.
        """
        return not self._doubts and not (self._broke is error and self._kept)

    def _left_behind(self) -> str:
        """Return the reason why the package refuses the final answer of the work. If the package accepts the answer,
        return an empty text.

        If the package refuses the answer, the key is not completed. If the key has no `call` step, the package always
        accepts the answer. If the key has a `call` step, the package refuses the answer in two cases. In the first
        case, a `write` step has failed, and the work has caught the error. In the second case, an earlier attempt has
        stored the result of a step, but the current attempt has not reached this step. For example, a customer has
        paid, and the order is missing. Then the key must stay open, so that a person notices this. But when the work
        runs again, it need not reach a stored `fetch` step, because a `fetch` only reads. If the answer comes from
        `reconcile`, the package does not call this method.
        """
        if self._broke is None and not self._unasked:
            return ""  # in most attempts, the method ends here and sends no query
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
