"""This module runs work in atomic mode. The database commits the claim, the business write and the stored result
together, or rolls all three back.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DatabaseError, Error, connections, transaction

from ...exceptions import IdempotencyConfigurationError, IdempotencyError, TransactionBroken
from ..events import harmless, report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, Conflicted, Finished, InDoubt, Verdict
from .bridge import NoBridgeAbove
from .claiming import claim_or_wait, unavailable
from .operation import AtomicOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Completed, Outcome, Refusal
    from ..stores import Store
    from .operation import Operation, Work

T = TypeVar("T")
logger = logging.getLogger("django_idempotency")
IDENTITY, ASKED = "_idempotency_identity", "_idempotency_asked"
"""Attributes of an `atomic()` block: whose key it has claimed, and that `set_rollback(True)` will roll it back."""


def run_atomically(
    store: Store, wanted: ClaimRequest, work: Work[T], run: Callable[[Operation], Finished[T]] | None = None
) -> Outcome[T]:
    """Run the work only once for each key. One transaction contains the claim, the work and the stored result.

    If the caller is inside `atomic()`, this function opens a savepoint, and no new transaction.

    Args:
        run: what runs in place of `work.run`. It must not raise.

    Raises:
        Exception: an exception of the work, if `work.answer` returns None for it. Also an exception of the COMMIT or of
            an `on_commit` callback, and a database error of the claim.
    """
    attempt = _Attempt(store, wanted, connections[store.alias])
    claim, finished, kept = None, None, False
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
            resource = operation.resource
            finished = returned if resource is None else replace(returned, resource=resource)
            if not kept:
                transaction.set_rollback(True, using=store.alias)
            elif finished.snapshot is not None:
                store.complete(claim, finished.snapshot, resource=finished.resource, last=True)
            else:
                store.release(claim)
        attempt.end()
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
        finished, kept = outcome, False
    if kept or finished.verdict is not Verdict.KEEP or finished.snapshot is None:
        return finished
    # The answer is final and must be stored. But the rollback of the writes has also rolled back the claim. So the
    # package claims the key again. If another request has claimed it in between, the outcome is that of a duplicate.
    attempt.refuse_if_all_is_lost()
    answered = finished
    return run_atomically(store, wanted, work, lambda operation: answered)


@dataclass
class _Attempt(NoBridgeAbove):
    """The transaction of one attempt, from `claim` to `end`.

    If the caller has no open transaction, the attempt has its own transaction. If the caller is inside an `atomic()`
    block, the attempt is a part of the caller's transaction. The same is true if the caller has switched autocommit
    off.

    # Note [An exception at any moment]
    A signal handler can raise an exception between any two steps of Python: Celery's soft time limit does, and the
    process lives on. A `with transaction.atomic():` alone has no guard while it begins or ends. If the connection
    stayed in its transaction, every later operation of this process would be a part of it, and would answer success
    with nothing committed. So one guard in `run_atomically` surrounds everything from the claim to the COMMIT, and
    trusts no flag that could have been set too late: `roll_back` looks whether the block is on Django's stack, and
    `mend` looks at the connection itself. Each of them also runs if the exception strikes in the other one.

    Attributes:
        connection: the database connection of this thread.
        outermost: True if the attempt has a transaction of its own, False if the attempt is a part of the caller's
            transaction.
        block: the attempt's `atomic()` block, from just before it begins until after it has ended.
        opening: True while the attempt opens the connection. An interrupted one is not configured yet.
        began: True once the block has begun.
        stacks: the lengths of Django's stacks of blocks and savepoints before the block.
    """

    store: Store
    wanted: ClaimRequest
    connection: Any
    outermost: bool = False
    opening: bool = False
    block: Any = None
    began: bool = False
    stacks: tuple[int, int] = (0, 0)

    def claim(self) -> ClaimOutcome:
        """Claim the key in a new transaction. If the claim succeeds, the transaction stays open. If the claim fails,
        the transaction ends.
        """
        store, wanted, connection = self.store, self.wanted, self.connection
        self.opening = connection.connection is None
        self.outermost = not connection.in_atomic_block and connection.get_autocommit()
        self.opening = False
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
                # The rollback to the savepoint releases the lock of the key. Otherwise, the key would stay locked until
                # the caller's transaction ends.
                transaction.set_rollback(True, using=store.alias)
        except BaseException:
            self.roll_back()
            raise
        self.end()
        return claim

    def _refuse_own_key(self) -> None:
        """Raise an error if the work that asks for the key is a part of the work that has it."""
        identity, database = self.wanted.identity, self.store.alias
        if not any(vars(block).get(IDENTITY) == identity for block in self.connection.atomic_blocks):
            return
        problem = (
            f"The work of {identity.operation!r} came back to its own key, {identity.reference} on database "
            f"{database!r}, before it was done: by a signal receiver or a recursion, for example. It was not run "
            "again. Call it outside of that work, or give it an operation or a key of its own."
        )
        with harmless():  # the work may catch the error, and go on
            logger.error(problem)
        raise IdempotencyConfigurationError(problem)

    def end(self) -> None:
        self.block.__exit__(None, None, None)
        self.block = None

    def roll_back(self) -> None:
        """Roll back because of the current exception, if the block has begun and has not ended yet."""
        if self.block in self.connection.atomic_blocks:
            self.block.__exit__(*sys.exc_info())
            self.block = None

    def mend(self, error: BaseException) -> None:
        """Repair what an exception in the middle of the block's begin or end has left behind.

        See Note [An exception at any moment].
        """
        self.__exit__()
        connection = self.connection
        if connection.connection is None or not (self.block or self.opening):
            return
        if not (self.outermost or self.opening):
            # What the attempt has written is perhaps still there, so the caller's transaction must not be committed.
            blocks, savepoints = self.stacks
            del connection.atomic_blocks[blocks:], connection.savepoint_ids[savepoints:]
            connection.in_atomic_block = bool(blocks)
            connection.needs_rollback = True
        elif self._is_torn(error):
            connection.in_atomic_block = connection.closed_in_transaction = False
            with suppress(Error):
                connection.close()  # the next query opens another one

    def _is_torn(self, error: BaseException) -> bool:
        """Return whether Django, the driver and the server perhaps disagree about the state of the connection."""
        connection = self.connection
        if self.opening or connection.in_atomic_block or not connection.autocommit:
            return True
        # Django itself clears up after a database error, and after a callback that fails when all is committed.
        return not (isinstance(error, DatabaseError) or (self.began and self._is_committed()))

    def _is_committed(self) -> bool:
        """Return whether an `on_commit` callback has raised the error, and the transaction is committed.

        After COMMIT, Django sets this attribute to True. After the callbacks, Django sets it to False.
        """
        return bool(self.connection.run_commit_hooks_on_set_autocommit_on)

    def hold_if_ended(self, claim: Claimed) -> None:
        """This method is called if the work has raised an exception. If the work itself has ended the transaction in
        which it ran, the method stops all retries of the key.

        When no transaction is open, the database commits each write immediately. So a retry would repeat writes that
        are already committed.
        """
        with suppress(Error):  # the caller must get the exception that the work has raised
            if self.store.has_ended(self.connection, claim):
                self._hold()

    def _hold(self) -> None:
        """Claim the key while no transaction is open, so that the database commits the claim immediately. The committed
        claim stops all retries until a person decides about the key.

        See Note [A committed claim without a lease].
        """
        self.connection.needs_rollback = False  # no transaction is open, so there is nothing to roll back
        self.store.claim(self.wanted)

    def may_commit(self, claim: Claimed, returned: Finished[T]) -> bool:
        """Return whether the package should commit the writes of the work.

        If a view returns a response, the package usually commits the writes of the view, as Django does. But after a
        response with the status 5xx, or after `set_rollback(True)`, the package rolls back all writes of the attempt.
        If the view answers 4xx after a database error, the database has perhaps discarded the writes already. Then the
        package stores only the response.

        Raises:
            TransactionBroken: the database has discarded writes, but the answer says that they were made. Or the work
                has ended its transaction, so the database has committed each later statement of the work by itself.
        """
        if self.store.has_ended(self.connection, claim):
            self._hold()
            raise TransactionBroken(
                "The view ended its own transaction in the middle: by a raw COMMIT or ROLLBACK, by a constraint or "
                "trigger that says ROLLBACK, or by executescript(), which commits. What it wrote after that is "
                "committed. So no retry runs: the key is held until a person decides about it. Use none of them in a "
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
                "The view closed its database connection, by connection.close() or connections.close_all(). So the "
                "database rolled back all its writes, and the view returned as if nothing had happened. Leave the "
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
        """Return the outcome after an error. The argument `finished` is the result of the work, if it has returned."""
        if (winner := self.winner(error, running=finished is None)) is not None:
            return winner
        if finished is not None or (answered := self.answer(work, error)) is None:
            raise error  # a work that has returned a result has not raised this error
        return answered

    def refuse_if_all_is_lost(self) -> None:
        if self.connection.needs_rollback:
            raise TransactionBroken(
                "The database has rolled back the whole transaction: a deadlock, for example. What was written before "
                "this operation, in the same transaction, is lost. Roll back, and start that transaction again."
            )

    def winner(self, error: Exception, *, running: bool) -> Completed | Refusal | None:
        """If another request with the same key has caused the error, return the outcome of that request. Otherwise,
        return None.

        With only one database server, a failed claim has only one possible cause: another request has claimed the key
        first. In a Galera cluster, two requests on different nodes can both claim the key. Then the slower request gets
        a database error from an SQL statement of its work, or from COMMIT.
        """
        if not self.outermost or self._is_committed() or not isinstance(error, DatabaseError):
            return None
        code = self.store.code(error)
        if code in self.store.lost and not running:
            return unavailable(self.store.alias, error)
        if code not in self.store.rolled_back:
            return None
        seen = self.store.look(self.wanted)
        # While the work runs, the error can also come from a deadlock on other rows. If `look` finds no result of
        # another request, this method returns None.
        return None if running and isinstance(seen, Conflicted) else seen

    def answer(self, work: Work[T], error: Exception) -> Finished[T] | None:
        """Return the framework's response to the exception that the work has raised. When this method is called, the
        writes and the claim are already rolled back.
        """
        store, wanted, answered = self.store, self.wanted, None
        event = "held" if self._is_held() else "released"
        try:
            answered = work.answer(error)
        finally:
            if answered is None:
                report(event, wanted.identity, store.alias, reason=describe(error))
        return answered

    def _is_held(self) -> bool:
        """Return True if the work has ended the transaction in which it ran. Then the claim is committed, and the
        package refuses all retries of the key.
        """
        # Inside the caller's transaction, the method `look` could find a row that is not committed. If the connection
        # is closed, no query is possible.
        if not self.outermost or self.connection.connection is None:
            return False
        try:
            return isinstance(self.store.look(self.wanted), InDoubt)
        except (Error, IdempotencyError):
            return False


def _note_rollbacks(connection: Any) -> None:
    """From now on, let `set_rollback` mark the block that it will roll back.

    Django only sets `needs_rollback`, as it does for a database error. Without the mark, a dry run would look like a
    view that hides an error.
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
