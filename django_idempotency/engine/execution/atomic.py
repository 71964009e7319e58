"""The atomic promise: claim, business write and stored result commit together, or not at all."""

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
    """Run the work once for its key: claim, run and keep the result in one transaction.

    Inside an outer `atomic()` that is a savepoint.

    Raises:
        Exception: what the work raises and `work.answer` does not answer; what COMMIT and `on_commit` callbacks raise;
            database errors of the claim.
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
            raise  # the error of the COMMIT, or of a callback of `on_commit`
        finished = attempt.answer(work, error)
        if finished is None:
            raise
    if kept or finished.verdict is not Verdict.KEEP or finished.snapshot is None:
        return finished
    return attempt.keep(finished, finished.snapshot)  # the writes are rolled back, and the answer is final


@dataclass
class _Attempt(NoBridgeAbove):
    """The transaction of one attempt. It begins with the claim, and ends with the `with` block.

    connection: that of this thread.
    outermost: whether the attempt is the whole transaction, so nothing of a caller is lost with it. It is not inside
        another `atomic()` block, and not where the caller has switched autocommit off.
    """

    store: Store
    wanted: ClaimRequest
    connection: Any
    outermost: bool = False

    def claim(self) -> ClaimOutcome:
        """Claim in a new transaction. It stays open for a `Claimed`, and has ended for all other outcomes."""
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
                # Back to the savepoint: the caller's transaction goes on, and must not keep the lock of the key.
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
        """The work has raised. If its transaction was over before, what it has written since then is committed."""
        with suppress(Error):  # the caller must see the error of the work
            if self.store.has_ended(self.connection, claim):
                self._hold()

    def _hold(self) -> None:
        """Claim the key outside of every transaction. So it is held for a person, and no retry writes again.

        See Note [A committed claim without a lease].
        """
        self.connection.needs_rollback = False  # there is nothing to roll back
        self.store.claim(self.wanted)

    def may_commit(self, claim: Claimed, returned: Finished[T]) -> bool:
        """Whether the writes of the work may be committed. A refusal (4xx) needs no writes, and is kept without them.

        Return commits, as in Django. The one exception: a returned 5xx rolls back, so that a retry starts clean.

        Raises:
            TransactionBroken: the database has discarded writes, and the answer promises them. Or the work has ended
                its transaction, and each of its statements since then was committed by itself.
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
        """The answer of a duplicate, if this transaction was rolled back because another one has committed this key.

        On one server the claim finds the other transaction. Nodes of a Galera cluster find it at COMMIT, or when they
        end a statement of the work. None: the error is about something else.
        """
        # This flag is still set when a callback of `on_commit` raises: then our own transaction has committed.
        committed = self.connection.run_commit_hooks_on_set_autocommit_on
        if not self.outermost or committed or not isinstance(error, DatabaseError):
            return None
        if self.store.code(error) not in self.store.rolled_back:
            return None
        seen = self.store.look(self.wanted)
        # A deadlock about rows of the work is the work's own error.
        return None if running and isinstance(seen, Conflicted) else seen

    def answer(self, work: Work[T], error: Exception) -> Finished[T] | None:
        """What the framework makes of the work's exception. Its writes and the claim are rolled back already."""
        store, wanted, answered = self.store, self.wanted, None
        event = "held" if self._is_held() else "released"
        try:
            answered = work.answer(error)
        finally:
            if answered is None:
                report(event, wanted.identity, store.alias, reason=describe(error))
        return answered

    def _is_held(self) -> bool:
        """Whether the claim is committed, although its work has failed: the work has ended its own transaction."""
        if not self.outermost or self.connection.connection is None:
            return False  # the row, if there is one, is not committed yet, or the server cannot be asked
        try:
            return isinstance(self.store.look(self.wanted), InDoubt)
        except (Error, IdempotencyError):
            return False

    def keep(self, finished: Finished[T], snapshot: Snapshot) -> Outcome[T]:
        """Keep an answer whose own transaction is gone, under a second claim. A request that was faster wins.

        Raises:
            TransactionBroken: if the database has rolled back the caller's writes, too. Then only the caller can go on.
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
