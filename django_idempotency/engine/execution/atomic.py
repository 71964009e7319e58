"""The atomic promise: claim, business write and stored result commit together, or all of them are rolled back."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DatabaseError, Error, connections, transaction

from ...exceptions import IdempotencyError, TransactionBroken
from ..events import report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, Conflicted, Finished, InDoubt, Verdict
from .bridge import NoBridgeAbove
from .claiming import claimed
from .operation import AtomicOperation

if TYPE_CHECKING:
    from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Completed, Outcome, Refusal, Snapshot
    from ..stores import Store
    from .operation import Work

T = TypeVar("T")


def run_atomically(store: Store, wanted: ClaimRequest, work: Work[T]) -> Outcome[T]:
    """Run the work once for its key: one transaction claims the key, runs the work and keeps the result.

    Inside an outer `atomic()`, there is one savepoint instead of one transaction.

    Raises:
        Exception: an exception of the work, if `work.answer` returns None for it. Also an exception of the COMMIT or of
            an `on_commit` callback, and a database error of the claim.
    """
    attempt = _Attempt(store, wanted, connections[store.alias])
    claim = claimed(store, attempt.claim, wanted.wait)
    if not isinstance(claim, Claimed):
        return claim
    finished, kept = None, False
    try:
        with attempt:
            operation = AtomicOperation(wanted.identity, claim.attempt)
            try:
                returned = work.run(operation)
            except BaseException:
                attempt.hold_if_ended(claim)
                raise
            kept = attempt.may_commit(claim, returned)
            resource = operation.resource
            finished = returned if resource is None else replace(returned, resource=resource)
            if not kept:
                transaction.set_rollback(True, using=store.alias)
            elif finished.snapshot is not None:
                store.complete(claim, finished.snapshot, resource=resource, last=True)
            else:
                store.release(claim)
    except Exception as error:
        if (winner := attempt.winner(error, running=finished is None)) is not None:
            return winner
        if finished is not None:
            raise  # the error comes from the COMMIT, or from an `on_commit` callback
        finished = attempt.answer(work, error)
        if finished is None:
            raise
    if kept or finished.verdict is not Verdict.KEEP or finished.snapshot is None:
        return finished
    # The writes of the work are rolled back, but the answer is final, so the answer is kept under a second claim.
    return attempt.keep(finished, finished.snapshot)


@dataclass
class _Attempt(NoBridgeAbove):
    """The transaction of one attempt. The transaction begins with the claim, and ends with the `with` block.

    connection: the connection of this thread.
    outermost: whether the attempt is the whole transaction.

    If the attempt is the whole transaction, a rollback does not touch the writes of a caller. An attempt inside another
    `atomic()` block is not the whole transaction. If the caller has switched autocommit off, the attempt is not the
    whole transaction either.
    """

    store: Store
    wanted: ClaimRequest
    connection: Any
    outermost: bool = False

    def claim(self) -> ClaimOutcome:
        """Claim in a new transaction. The transaction stays open for a `Claimed`, and ends for all other outcomes."""
        store, wanted, connection = self.store, self.wanted, self.connection
        block = transaction.atomic(using=store.alias)
        block.__enter__()
        try:
            self.outermost = connection.commit_on_exit and not connection.savepoint_ids
            claim = store.claim(wanted)
            if isinstance(claim, Claimed):
                report("claimed", wanted.identity, store.alias, attempt=claim.attempt)
                self._block = block
                return claim
            if not self.outermost:
                # Roll back to the savepoint, because the caller's transaction goes on and must not keep the lock of
                # the key.
                transaction.set_rollback(True, using=store.alias)
        except BaseException:
            block.__exit__(*sys.exc_info())
            raise
        block.__exit__(None, None, None)
        return claim

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._block.__exit__(*raised)

    def hold_if_ended(self, claim: Claimed) -> None:
        """Mark the key as held if the work has ended its own transaction and then raised an exception.

        What the work has written after this end is committed already, so a retry must not run.
        """
        with suppress(Error):  # the caller must see the error of the work
            if self.store.has_ended(self.connection, claim):
                self._hold()

    def _hold(self) -> None:
        """Claim the key outside of every transaction, so that the key waits for a person, and no retry writes again.

        See Note [A committed claim without a lease].
        """
        self.connection.needs_rollback = False  # no transaction is open, so there is nothing to roll back
        self.store.claim(self.wanted)

    def may_commit(self, claim: Claimed, returned: Finished[T]) -> bool:
        """Return whether the package should commit the writes of the work.

        If a view returns a response, its writes are committed, as in Django. There are two exceptions. If the response
        is a 5xx, the writes are rolled back, so that a retry starts without old writes. If the response is a refusal
        (4xx) and the database has discarded the writes, the response is kept without the writes.

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
        if not self.store.is_broken(self.connection):
            return True
        if returned.snapshot is not None and 400 <= returned.snapshot.status_code < 500:
            return False
        raise TransactionBroken(
            "The view caught a database error, after which the database discarded all its writes, and returned as if "
            "nothing had happened. Put the statement that may fail into its own `with transaction.atomic():` block. "
            "Never catch a deadlock or a serialization failure in the view: the whole transaction is lost with it, "
            "whichever block it was in."
        )

    # --- after the end of the transaction

    def winner(self, error: Exception, *, running: bool) -> Completed | Refusal | None:
        """Return a duplicate's answer if our transaction was rolled back because another transaction has the key.

        On one server, the claim already finds the other transaction. In a Galera cluster, a node finds the other
        transaction later: when our transaction commits, or when a statement of the work ends. The result None means
        that the error has another cause.
        """
        # Django sets this flag at COMMIT, and clears the flag after the `on_commit` callbacks. So if a callback raises,
        # the flag shows that our own transaction has committed.
        committed = self.connection.run_commit_hooks_on_set_autocommit_on
        if not self.outermost or committed or not isinstance(error, DatabaseError):
            return None
        if self.store.code(error) not in self.store.rolled_back:
            return None
        seen = self.store.look(self.wanted)
        # If another request still runs the key, the deadlock was about rows of the work, so the error belongs to the
        # work.
        return None if running and isinstance(seen, Conflicted) else seen

    def answer(self, work: Work[T], error: Exception) -> Finished[T] | None:
        """Return the framework's answer to the work's exception. The writes and the claim are rolled back already."""
        store, wanted, answered = self.store, self.wanted, None
        event = "held" if self._is_held() else "released"
        try:
            answered = work.answer(error)
        finally:
            if answered is None:
                report(event, wanted.identity, store.alias, reason=describe(error))
        return answered

    def _is_held(self) -> bool:
        """Return whether a failed work has left a committed claim, because the work has ended its own transaction."""
        if not self.outermost or self.connection.connection is None:
            return False  # a row is possibly there but not committed yet, or there is no connection
        try:
            return isinstance(self.store.look(self.wanted), InDoubt)
        except (Error, IdempotencyError):
            return False

    def keep(self, finished: Finished[T], snapshot: Snapshot) -> Outcome[T]:
        """Keep an answer under a second claim, because the first was rolled back. If another request won, return its
        outcome.

        Raises:
            TransactionBroken: the database has rolled back the caller's writes, too. Then only the caller can go on.
        """
        if self.connection.needs_rollback:
            raise TransactionBroken(
                "The database has rolled back the whole transaction: a deadlock, for example. What was written before "
                "this operation, in the same transaction, is lost. Roll back, and start that transaction again."
            )
        claim = claimed(self.store, self.claim, self.wanted.wait)
        if not isinstance(claim, Claimed):
            return claim
        try:
            with self:
                self.store.complete(claim, snapshot, resource=finished.resource, last=True)
        except Exception as error:
            if (winner := self.winner(error, running=False)) is not None:
                return winner
            raise
        return finished
