"""This module runs work in atomic mode. The claim, the business write and the stored result are committed together, or
all of them are rolled back.
"""

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
    """Run the work once for its key. One transaction contains the claim of the key, the work, and the stored result.

    If the caller is inside `atomic()`, this function uses one savepoint instead of one transaction.

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
    # The rollback of the writes has also rolled back the claim. But the answer is final, so the package claims the key
    # again, and stores the answer.
    return attempt.keep(finished, finished.snapshot)


@dataclass
class _Attempt(NoBridgeAbove):
    """This context manager runs the transaction of one attempt. The transaction begins with the claim of the key, and
    ends with the `with` block.

    If the caller has no open transaction, the attempt has a transaction of its own. A rollback of this transaction does
    not change the writes of the caller. If the caller is inside an `atomic()` block or has switched autocommit off, the
    attempt is a part of the caller's transaction.

    Attributes:
        connection: the database connection of this thread.
        outermost: True if the attempt has a transaction of its own, False if the attempt is a part of the caller's
            transaction.
    """

    store: Store
    wanted: ClaimRequest
    connection: Any
    outermost: bool = False

    def claim(self) -> ClaimOutcome:
        """Claim the key in a new transaction. If the outcome is `Claimed`, the transaction stays open. If the claim has
        another outcome, the transaction ends.
        """
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
                # This rollback to the savepoint releases the lock of the key. Without this rollback, the key would stay
                # locked until the caller's transaction ends.
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
        """Check after an exception of the work whether the work has ended its own transaction. If so, stop all retries
        of the key.

        If the work writes after the end of its transaction, these writes are committed at once. So a retry would repeat
        writes that are already committed.
        """
        with suppress(Error):  # the caller must get the error of the work, not an error of this check
            if self.store.has_ended(self.connection, claim):
                self._hold()

    def _hold(self) -> None:
        """Claim the key outside of every transaction. This claim stops all retries until a person decides about the
        key.

        See Note [A committed claim without a lease].
        """
        self.connection.needs_rollback = False  # no transaction is open, so there is nothing to roll back
        self.store.claim(self.wanted)

    def may_commit(self, claim: Claimed, returned: Finished[T]) -> bool:
        """Return whether the package should commit the writes of the work.

        As in Django, the writes of a view are usually committed if the view returns a response. But this method returns
        False in two cases. If the status of the response is 5xx, the writes are rolled back, so that no writes of the
        failed attempt remain. If the database has already discarded the writes of a 4xx response, the package stores
        only the response.

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

    # --- the next methods run after the end of the transaction

    def winner(self, error: Exception, *, running: bool) -> Completed | Refusal | None:
        """Another request with the same key can cause the rollback of our transaction. Then return the outcome of the
        other request.

        On a single database server, our claim already finds the claim of the other request. In a Galera cluster, a node
        can find the other claim later. Then our COMMIT or a statement of the work fails. If the error has another cause
        than a request with the same key, return None.
        """
        # Django sets `run_commit_hooks_on_set_autocommit_on` to True at COMMIT, and to False after the `on_commit`
        # callbacks. So if the attribute is still True here, our transaction is committed. Then an `on_commit` callback
        # has raised the error.
        committed = self.connection.run_commit_hooks_on_set_autocommit_on
        if not self.outermost or committed or not isinstance(error, DatabaseError):
            return None
        if self.store.code(error) not in self.store.rolled_back:
            return None
        seen = self.store.look(self.wanted)
        # While the work runs, the error can also come from a conflict about the rows that the work changes. Then `look`
        # finds no committed result of another request, and the error is treated as an error of the work.
        return None if running and isinstance(seen, Conflicted) else seen

    def answer(self, work: Work[T], error: Exception) -> Finished[T] | None:
        """Return the framework's response for an exception of the work. This method is called after the rollback of the
        writes and of the claim.
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
        """Return whether the work has ended its own transaction. In this case, a committed claim holds the key."""
        # Inside a caller's transaction, `look` could find a row that is not committed. If the connection is closed, no
        # query is possible.
        if not self.outermost or self.connection.connection is None:
            return False
        try:
            return isinstance(self.store.look(self.wanted), InDoubt)
        except (Error, IdempotencyError):
            return False

    def keep(self, finished: Finished[T], snapshot: Snapshot) -> Outcome[T]:
        """Claim the key again and store the answer, because the first claim was rolled back. If another request has
        claimed the key in the meantime, return the outcome of this request.

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
