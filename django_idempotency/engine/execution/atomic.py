"""Atomic mode: the claim, the business write and the stored result commit together, or not at all."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DatabaseError, Error, connections, transaction

from ...exceptions import IdempotencyConfigurationError, IdempotencyError, TransactionBroken
from ..events import harmless, report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, Conflicted, Finished, InDoubt, Verdict
from ..stores import opening
from .bridge import NoBridgeAbove
from .claiming import claim_or_wait, give_up, unavailable
from .operation import AtomicOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Completed, Outcome, Refusal
    from ..stores import Store
    from .operation import Operation, Work

T = TypeVar("T")
logger = logging.getLogger("django_idempotency")
IDENTITY, ASKED = "_idempotency_identity", "_idempotency_asked"
"""Attributes of an `atomic()` block: the identity whose key it claimed, and a mark showing that
`set_rollback(True)` was called to roll the block back."""


def run_atomically(
    store: Store, wanted: ClaimRequest, work: Work[T], run: Callable[[Operation], Finished[T]] | None = None
) -> Outcome[T]:
    """Run the work once for its key, in one transaction with the claim and the stored result.

    Inside the caller's `atomic()` block, the transaction is a savepoint.

    Args:
        run: what to run instead of `work.run`. It must not raise an exception.

    Raises:
        Exception: what the work raised, if `work.answer` has no response for it; what COMMIT or an `on_commit` callback
            raised; or a database error from the claim.
    """
    attempt = _Attempt(store, wanted, connections[store.alias])
    claim, finished, operation, kept = None, None, None, False
    try:
        claim = claim_or_wait(store, wanted.identity, attempt.claim, wanted.wait)
        if not isinstance(claim, Claimed):
            return claim
        with attempt:
            operation = AtomicOperation(wanted.identity, claim.attempt)
            try:
                returned = (run or work.run)(operation)
            except BaseException:
                attempt.hold_if_ended(claim)
                raise
            kept = attempt.may_commit(claim, returned)
            finished = _about(returned, operation)
            if not kept:
                transaction.set_rollback(True, using=store.alias)
            elif finished.snapshot is not None:
                store.complete(claim, finished.snapshot, resource=finished.resource, last=True)
            else:
                store.release(claim)
        attempt.end()
        if finished.verdict is not Verdict.KEEP:
            finished = replace(finished, held=attempt.is_held())
    except BaseException as error:
        try:
            attempt.roll_back()
        finally:
            attempt.mend(error)
        if claim is None or not isinstance(error, Exception):
            raise
        outcome = attempt.failed(work, error, finished)
        if not isinstance(outcome, Finished):
            return outcome
        finished, kept = _about(outcome, operation), False
    if kept or finished.verdict is not Verdict.KEEP or finished.snapshot is None:
        return finished
    # The answer is final and must be stored, but the claim was rolled back with the writes, so the key is claimed
    # again. If another request has claimed it in the meantime, that request decides the outcome, as for any duplicate.
    attempt.refuse_if_all_is_lost()
    answered = finished
    return run_atomically(store, wanted, work, lambda operation: answered)


def _about(finished: Finished[T], operation: Operation | None) -> Finished[T]:
    """Add the resource that the work has referred to."""
    resource = None if operation is None else operation.resource
    return finished if resource is None else replace(finished, resource=resource)


@dataclass
class _Attempt(NoBridgeAbove):
    """One attempt's transaction, from `claim` to `end`.

    Inside `atomic()` or with autocommit off, it is part of the caller's transaction. Otherwise, it is a separate
    transaction.

    # Note [An exception at any moment]
    A signal handler can raise an exception between any two Python instructions: Celery's soft time limit does so, and
    the process keeps running. A `with transaction.atomic():` block on its own is not protected while it is being
    entered or exited. If the connection were left in its transaction, every later operation in this process would
    become part of it, and would report success although nothing was committed. Therefore, one guard in `run_atomically`
    surrounds everything from the claim to the COMMIT. It does not trust any flag that might have been set too late:
    `roll_back` checks whether the block is on Django's stack, and `mend` examines the connection itself. If an
    exception is raised during `roll_back`, `mend` still runs.

    Attributes:
        connection: this thread's database connection.
        outermost: whether the attempt opens a transaction of its own.
        block: its `atomic()` block, from just before it begins until after it has ended.
        began: whether the block has begun.
        stacks: the lengths of Django's block and savepoint stacks before the block began.
    """

    store: Store
    wanted: ClaimRequest
    connection: Any
    outermost: bool = field(default=False, init=False)
    block: Any = field(default=None, init=False)
    began: bool = field(default=False, init=False)
    stacks: tuple[int, int] = field(default=(0, 0), init=False)

    def claim(self) -> ClaimOutcome:
        """Claim the key in a transaction that stays open only if the claim succeeds."""
        store, wanted, connection = self.store, self.wanted, self.connection
        if connection.connection is None and not connection.in_atomic_block:
            with opening(connection):
                pass
        self.outermost = not connection.in_atomic_block and connection.autocommit
        self.stacks = len(connection.atomic_blocks), len(connection.savepoint_ids)
        self.block = block = transaction.atomic(using=store.alias)
        self.began = False
        block.__enter__()
        self.began = True
        try:
            claim = store.claim(wanted)
            if isinstance(claim, Claimed):
                vars(block)[IDENTITY] = wanted.identity
                if "set_rollback" not in vars(connection):
                    _note_rollbacks(connection)
                report("claimed", wanted.identity, store.alias, attempt=claim.attempt)
                return claim
            if not self.outermost:
                self._refuse_own_key()
                # Rolling back to the savepoint releases the key's lock, which would otherwise be held until the
                # caller's transaction ends.
                transaction.set_rollback(True, using=store.alias)
        except BaseException:
            self.roll_back()
            raise
        self.end()
        return claim

    def _refuse_own_key(self) -> None:
        """Raise an error if the work that requests the key is part of the work that holds it."""
        identity, database = self.wanted.identity, self.store.alias
        if not any(vars(block).get(IDENTITY) == identity for block in self.connection.atomic_blocks):
            return
        problem = (
            f"The work of {identity.operation!r} came back to its own key, {identity.reference} on database "
            f"{database!r}, before it was done, for example by a signal receiver or a recursion. It was not run "
            "again. Call it outside that work, or give it an operation or a key of its own."
        )
        with harmless():  # the work may catch the error and continue
            logger.error(problem)
        raise IdempotencyConfigurationError(problem)

    def end(self) -> None:
        self.block.__exit__(None, None, None)
        self.block = None

    def roll_back(self) -> None:
        """Roll back because of the current exception, unless the block hasn't begun yet or has already ended."""
        if self.block in self.connection.atomic_blocks:
            self.block.__exit__(*sys.exc_info())
            self.block = None

    def mend(self, error: BaseException) -> None:
        """Repair the state left behind by an exception that was raised as the block began or ended.

        See Note [An exception at any moment].
        """
        self.__exit__()
        connection = self.connection
        if connection.connection is None or not self.block:
            return
        if not self.outermost:
            # What the attempt wrote may still be there, so the caller must not commit it.
            blocks, savepoints = self.stacks
            del connection.atomic_blocks[blocks:], connection.savepoint_ids[savepoints:]
            connection.in_atomic_block = bool(blocks)
            connection.needs_rollback = True
        elif self._is_torn(error):
            give_up(connection)

    def _is_torn(self, error: BaseException) -> bool:
        """Whether Django, the driver and the server may disagree about the state of the connection."""
        connection = self.connection
        if connection.in_atomic_block or not connection.autocommit:
            return True
        # Django cleans up by itself after a database error, and if a callback fails after everything has been
        # committed.
        return not (isinstance(error, DatabaseError) or (self.began and self._is_committed()))

    def _is_committed(self) -> bool:
        """Whether an `on_commit` callback raised the error. Django keeps the flag set until all callbacks have run."""
        return bool(self.connection.run_commit_hooks_on_set_autocommit_on)

    def hold_if_ended(self, claim: Claimed) -> None:
        """Hold the key if the work raised an exception after it had ended its own transaction.

        Anything it wrote after that was committed statement by statement, and a retry would repeat it.
        """
        with suppress(Error):  # the caller must get what the work raised
            if self.store.has_ended(self.connection, claim):
                self._hold()

    def _hold(self) -> None:
        """Commit a claim that blocks every retry until a person decides.

        See Note [A committed claim without a lease].
        """
        self.connection.needs_rollback = False  # without a transaction there's nothing to roll back
        self.store.claim(self.wanted)

    def may_commit(self, claim: Claimed, returned: Finished[T]) -> bool:
        """Return whether to commit what the work wrote.

        As in Django, a normal return commits, except with a 5xx response or after `set_rollback(True)`. A view that
        returns a 4xx response after a database error may already have lost its writes, so only the response is stored.

        Raises:
            TransactionBroken: the answer reports writes that the database has discarded; or the work ended its
                transaction, so that its later statements were committed one by one.
        """
        if self.store.has_ended(self.connection, claim):
            self._hold()
            raise TransactionBroken(
                "The view ended its own transaction in the middle: by a raw COMMIT or ROLLBACK, by a constraint or "
                "trigger that says ROLLBACK, or by executescript(), which commits. What it wrote after that is "
                "committed, so no retry runs: the key is held until a person decides about it. Use none of these in a "
                "protected view."
            )
        if returned.verdict is Verdict.ROLL_BACK:
            return False
        if self.connection.needs_rollback and ASKED in vars(self.block):
            return False  # the view knows that its writes are lost
        if not self.store.is_broken(self.connection):
            return True
        if returned.snapshot is not None and 400 <= returned.snapshot.status_code < 500:
            return False
        if self.connection.closed_in_transaction:
            raise TransactionBroken(
                "The view closed its database connection, by connection.close() or connections.close_all(). The "
                "database rolled back all its writes, but the view returned as if nothing had happened. Leave the "
                "connection open: Django closes it after the request."
            )
        raise TransactionBroken(
            "The view caught a database error, after which the database discarded all its writes, and returned as if "
            "nothing had happened. Put the statement that may fail into its own `with transaction.atomic():` block. "
            "Never catch a deadlock or a serialization failure in the view: the whole transaction is lost with it, "
            "whichever block it was in."
        )

    # --- after the transaction

    def failed(
        self, work: Work[T], error: Exception, finished: Finished[T] | None
    ) -> Completed | Refusal | Finished[T]:
        """Return the outcome after an error. `finished` is the work's result, if it returned one."""
        if (winner := self.winner(error, running=finished is None)) is not None:
            return winner
        if finished is not None or (answered := self.answer(work, error)) is None:
            raise error  # either the work had already returned, or it defines no response for this error
        return answered

    def refuse_if_all_is_lost(self) -> None:
        if self.connection.needs_rollback and not self.outermost:
            raise TransactionBroken(
                "The database has rolled back the whole transaction, for example because of a deadlock. What was "
                "written before this operation, in the same transaction, is lost. Roll back, and start that "
                "transaction again."
            )

    def winner(self, error: Exception, *, running: bool) -> Completed | Refusal | None:
        """Return the outcome of the duplicate that caused this error, or None if there was none.

        On a single server, a request can lose to a duplicate only when it claims the key. In a Galera cluster, both
        requests can claim the key, each on a different node. The slower one then gets a database error from one of its
        own statements, or from COMMIT.
        """
        if not self.outermost or self._is_committed() or not isinstance(error, DatabaseError):
            return None
        code = self.store.code(error)
        if code in self.store.lost and not running:
            return unavailable(self.store.alias, error)
        if code not in self.store.rolled_back:
            return None
        seen = self.store.look(self.wanted)
        # While the work is running, a deadlock may involve other rows. If no duplicate has stored a result, none
        # has won.
        return None if running and isinstance(seen, Conflicted) else seen

    def answer(self, work: Work[T], error: Exception) -> Finished[T] | None:
        """Return the framework's response to what the work raised.

        Its writes and the claim have already been rolled back, unless the work ended its own transaction.
        """
        held, answered = self.is_held(), None
        try:
            answered = work.answer(error)
        finally:
            if answered is None:
                event = "held" if held else "released"
                report(event, self.wanted.identity, self.store.alias, reason=describe(error))
        return None if answered is None else replace(answered, held=held)

    def is_held(self) -> bool:
        """Whether the claim was committed when the work ended its transaction. If so, every retry is refused."""
        # In the caller's transaction, `look` might find a row that isn't committed; a closed connection can't be
        # queried.
        if not self.outermost or self.connection.connection is None:
            return False
        try:
            return isinstance(self.store.look(self.wanted), InDoubt)
        except (Error, IdempotencyError):
            return False


def _note_rollbacks(connection: Any) -> None:
    """Patch the connection's `set_rollback` so that it also marks the block that will be rolled back.

    Django itself only sets `needs_rollback`, just as it does after a database error. A dry run would therefore look
    like a view that swallows an error.
    """

    def set_rollback(rollback: bool) -> None:
        type(connection).set_rollback(connection, rollback)
        blocks, savepoints = connection.atomic_blocks, connection.savepoint_ids
        with_savepoint = (block for block, id_ in zip(blocks[::-1], savepoints[::-1], strict=False) if id_ is not None)
        marks = vars(next(with_savepoint, blocks[0]))
        marks.pop(ASKED, None)
        if rollback:
            marks[ASKED] = True

    connection.set_rollback = set_rollback
