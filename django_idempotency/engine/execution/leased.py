"""Leased mode: the claim is committed first, and then the work, step by step.

After a crash, the database still shows which steps were started and which have finished.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import Error, IntegrityError, ProgrammingError, connections

from ...exceptions import (
    ClaimLost,
    IdempotencyConfigurationError,
    OutcomeUnknown,
    TransactionBroken,
)
from ...limits import is_limit, limit_in
from ...models import IdempotencyStep
from ..events import report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Finished, InDoubt, Outcome, Resource, Verdict
from ..stores import Store
from ..stores.journal import AlreadyFinished, KeptStep, NotRepeatable
from ..stores.server_checks import OWN
from ..stores.transactions import atomically
from .bridge import without_bridge_above
from .claiming import claim_or_wait, is_alone
from .operation import Operation, Work, as_kept, encode_returned, encode_step

T = TypeVar("T")
_CHANGE = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE)\b", re.IGNORECASE)
END = "the end of a leased view"
UNKNOWN = "The work answered, and it is unknown whether one of its steps took effect."
Kind = IdempotencyStep.Kind
logger = logging.getLogger("django_idempotency")


def run_leased(store: Store, wanted: ClaimRequest, work: Work[T]) -> Outcome[T]:
    """Run the work while this worker, and no other, holds the key's lease.

    The claim is committed, and the work runs with no transaction open. A final result completes the key. After any
    other result, or an exception, the key is marked as failed: its steps are kept, and the next retry may run
    immediately. If the worker dies, the next retry has to wait for the lease to expire.

    Raises:
        IdempotencyConfigurationError: a transaction is already open.
    """

    def run(operation: LeasedOperation, claim: Claimed) -> Finished[T]:
        # If the last attempt was abandoned, or if a call is in doubt or its value is lost, the project's `reconcile`
        # runs first. If it returns a final result, the work doesn't run.
        asks = claim.abandoned or claim.in_doubt or operation.lost
        return (work.reconcile(operation) if asks else None) or _run(store, work, operation)

    return run_claimed(store, wanted, "a leased view", run)


def run_claimed(
    store: Store, wanted: ClaimRequest, what: str, run: Callable[[LeasedOperation, Claimed], Finished[T]]
) -> Outcome[T]:
    """Commit a claim, run the attempt, and complete the key or mark it as failed.

    Exceptions and cancellations also mark it as failed, so that the next retry need not wait for the lease to expire.
    That includes an exception from a signal handler during the claim's COMMIT: the claim may have been committed.

    Args:
        what: who makes the claim, for the error message if a transaction is open.
    """
    held: Claimed | None = None
    about = ended = None

    def claim_it() -> ClaimOutcome:
        nonlocal held
        held = None  # an earlier try was rolled back
        outcome = store.claim(wanted)
        held = outcome if isinstance(outcome, Claimed) else None
        return outcome

    try:
        claim = claim_or_wait(store, wanted.identity, partial(committed, store, what, claim_it), wanted.wait)
        if not isinstance(claim, Claimed):
            return claim
        about, ended = claim.resource, "error"  # nothing runs before the steps are read
        event = "taken_over" if claim.abandoned else "claimed"
        report(event, wanted.identity, store.alias, attempt=claim.attempt, resource=about)
        operation = LeasedOperation(store, wanted, claim)
        ended = "released"
        try:
            finished = replace(run(operation, claim), resource=operation.resource)
        finally:
            about = operation.resource
        return _ended(operation, wanted, finished)
    except BaseException as error:
        if held is None or (ended is None and not is_limit(error)):
            raise  # see Note [Lost answers] about a claim whose COMMIT has failed
        if isinstance(error, ClaimLost):
            # Another worker took the key over, or a person made a decision about it. The client gets the same response
            # as a duplicate.
            return store.look(wanted)
        if not _released(store, wanted, held, error, ended, about) and not is_limit(error):
            return store.look(wanted)
        if isinstance(error, _Refused):
            return InDoubt(attempt=held.attempt, resource=about, unkeyed=(error.step,))
        # Cancellations are raised as well, and so are failures to store the response; the retry then completes the key
        # without repeating finished steps. With a backend, a retry would repeat the effect, so in that case the
        # response is sent anyway.
        raise


def _released(
    store: Store, wanted: ClaimRequest, held: Claimed, error: BaseException, event: str | None, about: Resource | None
) -> bool:
    """Mark the key as failed because of this exception. Return whether this worker still held it."""
    try:
        committed(store, END, partial(store.journal.fail, held, wanted, describe(error)), twice=True)
        if event:
            report(event, wanted.identity, store.alias, reason=describe(error), resource=about)
    except ClaimLost:
        return False
    except (Error, IdempotencyConfigurationError):
        logger.exception("Idempotency key row %s could not be released; it waits for its lease.", held.id)
    return True


def _ended(operation: LeasedOperation, wanted: ClaimRequest, finished: Finished[T]) -> Finished[T]:
    """Complete the key or mark it as failed. Raises `ClaimLost`."""
    store, claim = operation._store, operation._claim
    if finished.verdict is Verdict.KEEP and finished.snapshot is not None:
        settled = not operation._reconciling  # `reconcile`'s answer is final, even if a step has no result
        try:
            committed(store, END, partial(store.complete, claim, finished.snapshot, ttl=wanted.ttl, settled=settled))
        except ClaimLost:
            if not settled:
                raise
            # Either this worker no longer holds the key, or the row's count of unfinished steps includes one that this
            # worker doesn't know about: the COMMIT that started the step succeeded, but its confirmation was lost.
            # `fail` tells the two cases apart.
            finished = replace(finished, verdict=Verdict.ROLL_BACK, reason=UNKNOWN)
        else:
            return finished
    committed(store, END, partial(store.journal.fail, claim, wanted, finished.reason))
    return finished


def committed(store: Store, what: str, write: Callable[[], T], *, twice: bool = False) -> T:
    """Call `write` in a transaction of its own, and commit it. In a `TestCase`, the transaction is a savepoint.

    Args:
        what: the subject of the error message, such as "operation.call('charge')".
        twice: repeat the write on a new connection after a database error, because some servers close a connection that
            is idle during a long call. Use it for writes that must not be lost and that are safe to repeat.

    Raises:
        IdempotencyConfigurationError: another transaction is open on the store's alias.
    """
    if twice:
        return _reconnecting_once(store, lambda: committed(store, what, write))
    handled = sys.exception()
    if not is_alone(store):
        raise IdempotencyConfigurationError(
            f"{what} was reached inside a transaction of database {store.alias!r}. Leased mode commits step by step, "
            "so that a crash leaves a trace of what was called. Remove the atomic(), set_autocommit(False) or raw "
            "BEGIN, which may be a middleware's, such as the RevisionMiddleware of django-reversion. Under "
            "ATOMIC_REQUESTS put @idempotent on the view function or on `dispatch`, use IdempotencyMixin, or add "
            "@transaction.non_atomic_requests."
        )
    try:
        return atomically(store.alias, write, durable=True)
    except ProgrammingError as error:
        # A driver whose query was interrupted may refuse what Django asks of it next.
        if (limit := limit_in(error, handled)) is not None:
            raise limit from error
        raise


def _reconnecting_once(store: Store, write: Callable[[], T]) -> T:
    try:
        return write()
    except Error:
        if store.connection.in_atomic_block:
            raise  # a TestCase's transaction lives on this connection
        store.connection.close()
        return write()


def _run(store: Store, work: Work[T], operation: LeasedOperation) -> Finished[T]:
    operation._begin_work()
    try:
        finished = warned_about_changes(
            [store.alias],
            "A leased view changed data outside of operation.write(): {!r}. "
            "A retry would do it again. Put it into a step: operation.write(name, function, …).",
            partial(work.run, operation),
            excused=lambda sql: operation.writing or any(table in sql for table in OWN),
        )
    except (ClaimLost, _Refused):
        raise  # the framework can't answer these, so the client gets the same response as a duplicate
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


def warned_about_changes(
    aliases: Iterable[str], text: str, run: Callable[[], T], *, excused: Callable[[str], bool] = lambda sql: False
) -> T:
    """Run the work. With DEBUG on, warn about its statements that change data in these databases, because a retry would
    repeat them.

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


class _Refused(OutcomeUnknown):
    """A call must not be repeated in this attempt, so the client gets the same response as for any held key."""

    def __init__(self, step: str) -> None:
        super().__init__(InDoubt(unkeyed=(step,)).choice)
        self.step = step


class LeasedOperation(Operation):
    """The `Operation` of leased mode, whose steps are stored in the journal."""

    writing = False
    _doubts: set[str]
    _kept: dict[str, str | None]
    _broke: BaseException | None = None
    """The exception that a `write` raised."""

    def __init__(self, store: Store, wanted: ClaimRequest, claim: Claimed) -> None:
        self._store, self._journal, self._claim = store, store.journal, claim
        self._lease = wanted.lease or 0
        self._keys_last = wanted.keys_last if wanted.policy == "retry-keyed" else None
        # At first, these are the steps of earlier attempts, whose workers can no longer add any. This attempt adds its
        # own steps as it runs.
        steps = store.journal.steps(claim) if claim.attempt > 1 else {}
        self._doubts = {name for name, step in steps.items() if not step.finished}
        self._kept = {name: step.result for name, step in steps.items() if step.finished}
        self._calls = {name for name, step in steps.items() if step.kind == Kind.CALL}
        self._fetched = {name for name, step in steps.items() if step.kind == Kind.FETCH}
        super().__init__(wanted.identity, claim.attempt, claim.resource, steps_on=store.alias)
        self._reconciling = True

    def _begin_work(self) -> None:
        """Record that the work, rather than `reconcile`, is now running."""
        self._reconciling = False
        self._begin()

    def renew(self) -> None:
        """Restart the lease at its full length."""
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
        # The call took effect, so record that before raising anything.
        kept, error = encode_returned(value)
        what = f"the end of operation.call({name!r})"
        if name not in self._kept:
            error = self._finish_call(what, partial(self._journal.finish_call, self._claim, name, kept)) or error
        elif kept is not None:  # `reconcile` records a lost value
            committed(self._store, what, partial(self._journal.enter_lost, self._claim, name, kept))
        # In this order, because a signal may raise an exception in between: the step must never be in neither.
        self._kept[name] = kept
        self._doubts.discard(name)
        if error is not None:
            raise error
        return as_kept(value, str(kept))

    def _finish_call(self, what: str, finish: Callable[[], None]) -> BaseException | None:
        """Store that a call has returned. Return the limit that struck meanwhile; the result is stored all the same."""
        try:
            committed(self._store, what, finish, twice=True)
        except AlreadyFinished:
            pass  # the first try was committed, but its confirmation was lost
        except BaseException as error:
            if not is_limit(error):
                raise
            with suppress(AlreadyFinished):
                committed(self._store, what, finish, twice=True)
            return error
        return None

    def _note(self, name: str, error: BaseException) -> None:
        """If the database allows it, store the error that left a call in doubt. The key's timeline shows it."""
        try:
            note = partial(self._journal.note_error, self._claim, name, describe(error))
            committed(self._store, f"the end of operation.call({name!r})", note)
        except Exception as ours:
            if is_limit(ours):
                raise
            # The work must see the call's error, not ours.

    def _keep_fetched(self, name: str, value: Any) -> Any:
        kept = encode_step(value)
        keep = partial(self._journal.keep_fetched, self._claim, name, kept)
        # During a slow `fetch`, the server may have closed the idle connection. Try again on a new one.
        try:
            _reconnecting_once(self._store, partial(atomically, self._store.alias, keep, savepoint=False))
        except IntegrityError:
            # Perhaps the first INSERT was committed and only its confirmation was lost.
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
                value = without_bridge_above(function)
                done.append(encode_step(value))
            finally:
                self.writing = False
                ended = self._store.has_no_transaction(self._store.connection)
            if not ended:
                self._journal.finish_write(self._claim, name, done[0])
            return value

        try:
            self._doubts.add(name)
            try:
                value = committed(self._store, what, write)
            finally:
                if ended:
                    self._repair(name, what, done)
        except BaseException as error:
            # The error may come not only from the step's function but also from COMMIT, which checks deferred
            # constraints.
            self._broke, self.resource = error, about
            # If the step has a row by now, its changes may be committed, even though its function, COMMIT or a callback
            # of `on_commit` has raised. The step also stays in doubt if the database can't be asked.
            with suppress(Error, ClaimLost, IdempotencyConfigurationError):
                if not committed(self._store, what, partial(self._journal.has, self._claim, name)):
                    self._doubts.discard(name)
            raise
        self._kept[name] = done[0]
        self._doubts.discard(name)
        return as_kept(value, done[0])

    def _repair(self, name: str, what: str, done: list[str]) -> None:
        """Store the result, or leave the step in doubt, after its function has ended the transaction.

        From then on, everything that the function did was committed statement by statement.
        """
        if name in self._journal.steps(self._claim):  # a raw COMMIT has committed the step's start
            if done:
                committed(self._store, what, partial(self._journal.finish_write, self._claim, name, done[0]))
            return
        committed(self._store, what, partial(self._journal.start_write, self._claim, name))
        if done:
            raise TransactionBroken(
                f"The function of operation.write({name!r}) lost its transaction in the middle: by a raw ROLLBACK, by "
                "a constraint or trigger that says ROLLBACK, or with its connection, which the driver has replaced. "
                "What it wrote before that is lost, and what it wrote after that is committed. The step is in doubt "
                "until a person decides about it."
            )

    # --- the end

    def _may_end_with(self, error: Exception) -> bool:
        """Whether the framework's response to this exception may be final.

        It must not be final if any step is in doubt or any call's value has been lost, because the exception may have
        come from that step or call. The same is true if a `write` raised it after other steps had finished, because a
        completed key would hide their effects.
        """
        return not (self._doubts or self.lost or self._unreceived() or (self._broke is error and self._kept))

    def _unreceived(self) -> str:
        return ", ".join(sorted((self._pending & self._kept.keys()) - self._fetched))

    def _left_behind(self) -> str:
        """Return the reason why the work's answer must not complete the key, or an empty string if there is none.

        A key completed too early could leave a paying customer without an order. The key therefore stays open and
        visible as long as a call's value is missing or it is unknown whether a step took effect. Once a call has been
        made, there are two other cases in which the key stays open: the work caught the exception raised by a failed
        `write`, or it did not request a step that an earlier attempt had finished. A stored `fetch` may be skipped,
        because it only reads.
        """
        if self._doubts:
            return f"The work answered, and it is unknown whether {', '.join(self.in_doubt)} took effect."
        if self.lost:
            return f"The work answered, and the value of {', '.join(self.lost)} was lost."
        if unreceived := self._unreceived():
            return (
                f"The work answered without the result of {unreceived}, which was stored after the work had given up."
            )
        if not self._calls:
            return ""
        if self._broke is not None:
            return f"A write raised after a call was made, and the work answered all the same: {describe(self._broke)}"
        unasked = ", ".join(sorted(self._unasked - self._fetched))
        return unasked and (
            f"The work answered without asking for {unasked}, which an earlier attempt has recorded. Ask "
            "for the steps first: a condition of the view must not answer before them."
        )
