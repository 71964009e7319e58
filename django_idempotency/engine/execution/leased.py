"""In leased mode, the package first commits the claim, and then commits the work step by step.

So after a crash, the database shows which steps were started and which steps were finished.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import Error, IntegrityError, connections, transaction

from ...exceptions import (
    ClaimLost,
    IdempotencyConfigurationError,
    OutcomeUnknown,
    ResultNotStorable,
    TransactionBroken,
)
from ...models import IdempotencyStep
from ..events import report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimRequest, Finished, InDoubt, Outcome, Resource, Verdict
from ..stores import Store
from ..stores.journal import AlreadyFinished, KeptStep, NotRepeatable
from ..stores.server_checks import OWN
from .bridge import NoBridgeAbove
from .claiming import claim_or_wait, is_alone
from .operation import Operation, Work, as_kept, encode_step

T = TypeVar("T")
_CHANGE = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE)\b", re.IGNORECASE)
END = "the end of a leased view"
UNKNOWN = "The work answered, and it is unknown whether one of its steps took effect."
Kind = IdempotencyStep.Kind
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
    claim_it = partial(committed, store, "a leased view", partial(store.claim, wanted))
    claim = claim_or_wait(store, wanted.identity, claim_it, wanted.wait)
    if not isinstance(claim, Claimed):
        return claim

    def run(operation: LeasedOperation) -> Finished[T]:
        # After an attempt that was abandoned, or left a call in doubt or without its value, the project's `reconcile`
        # is asked first. If it returns a final result, the work does not run.
        asks = claim.abandoned or claim.in_doubt or operation.lost
        return (work.reconcile(operation) if asks else None) or _run(store, work, operation)

    return run_claimed(store, wanted, claim, run)


def run_claimed(
    store: Store, wanted: ClaimRequest, claim: Claimed, run: Callable[[LeasedOperation], Finished[T]]
) -> Outcome[T]:
    """Run an attempt whose claim is already committed. After the attempt, mark the key as completed or as failed.

    If the work raises an exception or is cancelled, the key is marked as failed. Then the next retry does not have to
    wait until the lease ends.
    """
    about, ended = claim.resource, "error"  # nothing runs before the steps are read
    try:
        event = "taken_over" if claim.abandoned else "claimed"
        report(event, wanted.identity, store.alias, attempt=claim.attempt, resource=about)
        operation = LeasedOperation(store, wanted, claim)
        ended = "released"
        try:
            finished = replace(run(operation), resource=operation.resource)
        finally:
            about = operation.resource
        finished = _ended(operation, wanted, finished)
    except ClaimLost:
        # Another worker has taken over the key, or a person has decided about the key. So the client gets the answer
        # that a duplicate would get now.
        return store.look(wanted)
    except BaseException as error:
        try:
            committed(store, END, partial(store.journal.fail, claim, wanted, describe(error)), twice=True)
            report(ended, wanted.identity, store.alias, reason=describe(error), resource=about)
        except ClaimLost:
            if isinstance(error, Exception):
                return store.look(wanted)
        except (Error, IdempotencyConfigurationError):
            logger.exception("Idempotency key row %s could not be released; it waits for its lease.", claim.id)
        if isinstance(error, _Refused):
            return InDoubt(attempt=claim.attempt, resource=about, unkeyed=(error.step,))
        # The caller gets every error, also a cancellation, and the failure to store a response: the retry repeats no
        # finished step, and completes the key. In a backend it would repeat the effect, so there the response is sent.
        raise
    return finished


def _ended(operation: LeasedOperation, wanted: ClaimRequest, finished: Finished[T]) -> Finished[T]:
    """Complete the key or mark it as failed. Raises `ClaimLost`."""
    store, claim = operation._store, operation._claim
    if finished.verdict is Verdict.KEEP and finished.snapshot is not None:
        settled = not operation._reconciling  # what `reconcile` answers is final, whatever the steps say
        try:
            committed(store, END, partial(store.complete, claim, finished.snapshot, ttl=wanted.ttl, settled=settled))
        except ClaimLost:
            if not settled:
                raise
            # Either another worker has the key, or its row knows of a step without a result that this worker does not:
            # a start whose COMMIT was confirmed to nobody. `fail` tells them apart.
            finished = replace(finished, verdict=Verdict.ROLL_BACK, reason=UNKNOWN)
        else:
            return finished
    committed(store, END, partial(store.journal.fail, claim, wanted, finished.reason))
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
    operation._begin_work()
    try:
        with _warned_about_stray_writes(store, operation):
            finished = work.run(operation)
    except (ClaimLost, _Refused):
        raise  # the framework has no answer to these: the client gets what a duplicate would get
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
    return warned_about_changes(
        [store.alias],
        "A leased view changed data outside of operation.write(): {!r}. "
        "A retry would do it again. Put it into a step: operation.write(name, function, …).",
        excused=lambda sql: operation.writing or any(table in sql for table in OWN),
    )


def warned_about_changes(
    aliases: Iterable[str], text: str, *, excused: Callable[[str], bool] = lambda sql: False
) -> AbstractContextManager[Any]:
    """With DEBUG, warn about each SQL statement on these databases that changes data, because a retry would do it
    again. The text gets the beginning of the statement.
    """

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if _CHANGE.match(str(sql)) and not excused(str(sql)):
            warnings.warn(text.format(str(sql)[:200]), RuntimeWarning, stacklevel=2)
        return execute(sql, params, many, context)

    watched = ExitStack()
    for alias in aliases if settings.DEBUG else ():
        watched.enter_context(connections[alias].execute_wrapper(watch))
    return watched


class _Refused(OutcomeUnknown):
    """A call of this attempt must not be repeated, so the client gets what a duplicate of a held key gets."""

    def __init__(self, step: str) -> None:
        super().__init__(InDoubt(unkeyed=(step,)).choice)
        self.step = step


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
        self._keys_last = wanted.keys_last if wanted.policy == "retry-keyed" else None
        # At first these are the steps of earlier attempts, whose workers can add none any more. The steps of this
        # attempt join them as it runs.
        steps = store.journal.steps(claim) if claim.attempt > 1 else {}
        self._doubts = {name for name, step in steps.items() if not step.finished}
        self._kept = {name: step.result for name, step in steps.items() if step.finished}
        self._calls = {name for name, step in steps.items() if step.kind == Kind.CALL}
        self._fetched = {name for name, step in steps.items() if step.kind == Kind.FETCH}
        super().__init__(wanted.identity, claim.attempt, claim.resource, steps_on=store.alias)
        self._reconciling = True

    def _begin_work(self) -> None:
        """From here on the work runs, and no longer `reconcile`."""
        self._reconciling = False
        self._begin()

    def renew(self) -> None:
        """Start the lease again with its full length."""
        self._journal.renew(self._claim, self._lease)

    def _keep_resource(self, resource: Resource) -> None:
        self._journal.refer(self._claim, resource)

    # --- calls and reads

    def _start(self, name: str) -> tuple[bool, Any]:
        known, value = super()._start(name)
        if not known and name not in self._kept:
            again = name in self._doubts
            asked = (
                {"keyed": None} if self._reconciling else {"keyed": name in self._keyed, "keys_last": self._keys_last}
            )
            start = partial(self._journal.start_call, self._claim, name, again=again, **asked)
            try:
                committed(self._store, f"operation.call({name!r})", start)
            except NotRepeatable:
                raise _Refused(name) from None
            self._doubts.add(name)
            self._calls.add(name)
        return known, value

    def _finish(self, name: str, value: Any) -> Any:
        error = kept = None
        try:
            kept = encode_step(value)
        except ResultNotStorable as not_storable:
            # The external call is done, but its result cannot be stored. So the package first records that the call is
            # done, and then raises the error.
            error = not_storable
        what = f"the end of operation.call({name!r})"
        if name not in self._kept:
            with suppress(AlreadyFinished):  # by the first try, whose COMMIT was confirmed to nobody
                committed(self._store, what, partial(self._journal.finish_call, self._claim, name, kept), twice=True)
        elif kept is not None:  # `reconcile` enters a value that was lost
            committed(self._store, what, partial(self._journal.enter_lost, self._claim, name, kept))
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
            stored = KeptStep(Kind.FETCH, True, kept)
            if self._store.connection.in_atomic_block or self._journal.steps(self._claim).get(name) != stored:
                raise
        self._fetched.add(name)
        self._kept[name] = kept
        return as_kept(value, kept)

    # --- writes

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        about, what = self.resource, f"operation.write({name!r})"
        done: list[str] = []
        ended = False

        def write() -> Any:
            nonlocal ended
            self._journal.start_write(self._claim, name)
            self.writing = True
            try:
                with NoBridgeAbove():
                    value = function()
                    done.append(encode_step(value))
            finally:
                self.writing = False
                ended = self._store.has_no_transaction(self._store.connection)
            if not ended:
                self._journal.finish_write(self._claim, name, done[0])
            return value

        try:
            try:
                value = committed(self._store, what, write)
            finally:
                if ended:
                    self._repair(name, what, done)
        except BaseException as error:
            # The function of the step can raise this error. The COMMIT can also raise this error, because a database
            # checks some constraints only at COMMIT.
            self._broke, self.resource = error, about
            # A row for this `write` step is already in the table, so the step's function must have ended the step's
            # transaction. Then perhaps the function's changes are committed in the database, so the step is in doubt.
            with suppress(Error, ClaimLost):
                if name in self._journal.steps(self._claim):
                    self._doubts.add(name)
            raise
        self._kept[name] = done[0]
        return as_kept(value, done[0])

    def _repair(self, name: str, what: str, done: list[str]) -> None:
        """The function of a write ended the transaction, and what it did after that was committed statement by
        statement. Store the result, or leave the step in doubt.
        """
        if name in self._journal.steps(self._claim):  # a raw COMMIT has stored the start
            if done:
                committed(self._store, what, partial(self._journal.finish_write, self._claim, name, done[0]))
            return
        committed(self._store, what, partial(self._journal.start_write, self._claim, name))
        if done:
            raise TransactionBroken(
                f"The function of operation.write({name!r}) lost its transaction in the middle: by a raw ROLLBACK, by "
                "a constraint or trigger that says ROLLBACK, or with its connection, which the driver has made anew. "
                "What it wrote before that is lost, and what it wrote after that is committed. So the step is in "
                "doubt until a person decides about it."
            )

    # --- the end

    def _may_end_with(self, error: Exception) -> bool:
        """Whether the framework's answer to this exception may be final.

        It may not while a step is in doubt, which perhaps raised it, or a value is lost; nor if a `write` raised it
        after other steps have finished, because a completed key would hide their effects.
        """
        return not (self._doubts or self.lost or (self._broke is error and self._kept))

    def _left_behind(self) -> str:
        """Why no answer of the work may complete the key, or an empty text.

        An order may be missing although its customer has paid, so the key stays open and is seen: while it is unknown
        whether a step took effect or the value of a call is lost, and, once a call was made, if a `write` failed and
        the work caught its error, or if the attempt did not ask for a step that an earlier one has finished. A stored
        `fetch` need not be asked for: it only reads.
        """
        if self._doubts:
            return f"The work answered, and it is unknown whether {', '.join(self.in_doubt)} took effect."
        if self.lost:
            return f"The work answered, and the value of {', '.join(self.lost)} was lost."
        if not self._calls:
            return ""
        if self._broke is not None:
            return f"A write raised after a call was made, and the work answered all the same: {describe(self._broke)}"
        unasked = ", ".join(sorted(self._unasked - self._fetched))
        return unasked and (
            f"The work answered without asking for {unasked}, which an earlier attempt has recorded. Ask "
            "for the steps first: a condition of the view must not answer before them."
        )
