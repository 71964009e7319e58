"""This module runs work in atomic mode. The database commits the claim, the business write and the stored result
together, or rolls all three back.
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
    """Run the work only once for each key. One transaction contains the claim, the work and the stored result.

    If the caller is inside `atomic()`, this function opens a savepoint, and no new transaction.

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
            raise  # the work has not raised this error, because the work has returned a result
        finished = attempt.answer(work, error)
        if finished is None:
            raise
    if kept or finished.verdict is not Verdict.KEEP or finished.snapshot is None:
        return finished
    # The answer is final and must be stored. But the rollback of the writes has also rolled back the claim. So the
    # package claims the key again.
    return attempt.keep(finished, finished.snapshot)


@dataclass
class _Attempt(NoBridgeAbove):
    """This context manager runs the transaction of one attempt. The method `claim` begins the transaction. The
    transaction ends at the end of the `with` block.

    If the caller has no open transaction, the attempt has its own transaction. If the caller is inside an `atomic()`
    block, the attempt is a part of the caller's transaction. The same is true if the caller has switched autocommit
    off.

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
        """Claim the key in a new transaction. If the claim succeeds, the transaction stays open. If the claim fails,
        the transaction ends.
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
                # The rollback to the savepoint releases the lock of the key. Otherwise, the key would stay locked until
                # the caller's transaction ends.
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
        response with the status 5xx, the package rolls back all writes of the failed attempt. If the view answers 4xx
        after a database error, the database has perhaps discarded the writes already. Then the package stores only the
        response.

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

    # --- after the transaction

    def winner(self, error: Exception, *, running: bool) -> Completed | Refusal | None:
        """If another request with the same key has caused the error, return the outcome of that request. Otherwise,
        return None.

        With only one database server, a failed claim has only one possible cause: another request has claimed the key
        first. In a Galera cluster, two requests on different nodes can both claim the key. Then the slower request gets
        a database error from an SQL statement of its work, or from COMMIT.
        """
        # After COMMIT, Django sets the attribute `run_commit_hooks_on_set_autocommit_on` to True. After the `on_commit`
        # callbacks, Django sets this attribute to False. So if the attribute is True here, an `on_commit` callback has
        # raised the error, and our transaction is committed.
        committed = self.connection.run_commit_hooks_on_set_autocommit_on
        if not self.outermost or committed or not isinstance(error, DatabaseError):
            return None
        if self.store.code(error) not in self.store.rolled_back:
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

    def keep(self, finished: Finished[T], snapshot: Snapshot) -> Outcome[T]:
        """Claim the key again, and store the answer. The first claim was rolled back. If another request has claimed
        the key after the rollback, the new claim fails. Then return the outcome of this claim, for example
        `Conflicted`.

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
