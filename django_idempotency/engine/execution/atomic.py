"""Atomic mode: the claim, the business write and the stored result commit together, or not at all."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.db import DatabaseError, Error, connections

from ...exceptions import IdempotencyConfigurationError, IdempotencyError, TransactionBroken
from ..events import harmless, report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, Conflicted, Finished, InDoubt, Verdict
from ..stores.connecting import opened
from ..stores.transactions import Transaction
from .bridge import without_bridge_above
from .claiming import claim_or_wait, unavailable
from .operation import Operation
from .runners import Runner
from .steps import ONE_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Completed, Outcome, Refusal
    from ..stores import Store
    from .runners import Work
    from .steps import StepJournal

T = TypeVar("T")
LEVEL_IS_FIXED = (
    "The claim of the idempotency key is the first query of this transaction, so its isolation level can't be changed. "
    "Give the view an alias of its own with that level in its OPTIONS, and pass using= with its name."
)
logger = logging.getLogger("django_idempotency")
IDENTITY, ASKED = "_idempotency_identity", "_idempotency_asked"
"""Attributes of an `atomic()` block: the identity whose key it claimed, and a mark showing that
`set_rollback(True)` was called to roll the block back."""


class Atomic(Runner):
    """The claim, the work's writes and the stored result are one transaction, or a savepoint in the caller's."""

    possible: ClassVar = {"in_progress_status": (409,), "on_abandoned": ("retry-keyed",), "reconcile": (None,)}
    misfit = "applies to leased mode only. Pass lease=timedelta(minutes=2), for example, or leave %s out."
    claims_first = False

    @staticmethod
    def suits(backend: str | None, lease: Any) -> bool:
        return backend is None and lease is None

    def run(self, store: Store, request: ClaimRequest, work: Work[T]) -> Outcome[T]:
        """See the base class.

        Raises:
            Exception: what the work raised, if `work.answer` has no response for it; what COMMIT or an `on_commit`
                callback raised; or a database error from the claim.
        """
        run = work.run
        while True:
            attempt = _Attempt(store, request, Transaction(connections[store.alias]))
            outcome, is_stored = attempt.transaction.guard(partial(_run, attempt, work, run))
            if is_stored or not isinstance(outcome, Finished) or outcome.final is None:
                return outcome
            # The answer is final and must be stored, but the claim was rolled back with the writes, so the key is
            # claimed again. If another request has claimed it in the meantime, this request gets the outcome that any
            # other duplicate would get.
            attempt.refuse_if_all_is_lost()
            run = partial(_answered, outcome)

    def described(self) -> str:
        return "atomic"

    def journal(self, operation: str) -> StepJournal:
        return ONE_TRANSACTION


def _answered(finished: Finished[T], operation: Operation) -> Finished[T]:
    return finished


def _run(attempt: _Attempt, work: Work[T], run: Callable[[Operation], Finished[T]]) -> tuple[Outcome[T], bool]:
    """Return the outcome, and whether it is stored with the claim."""
    store, request = attempt.store, attempt.request
    claim, finished, operation = None, None, None
    try:
        claim = claim_or_wait(store, request, attempt.claim, alone=attempt.transaction.is_alone)
        if not isinstance(claim, Claimed):
            return claim, False
        operation = Operation(request.identity, claim.attempt)
        try:
            returned = without_bridge_above(partial(run, operation))
        except BaseException:
            attempt.hold_if_ended(claim)
            raise
        is_kept = attempt.may_commit(claim, returned)
        finished = _about(returned, operation)
        if not is_kept:
            attempt.transaction.roll_back()
        else:
            if finished.snapshot is not None:
                connection = attempt.transaction.connection
                store.complete(claim, finished.snapshot, resource=finished.resource, connection=connection)
            else:
                store.release(claim)
            attempt.transaction.end()
        if finished.verdict is not Verdict.KEEP:
            finished = replace(finished, held=attempt.is_held())
        return finished, is_kept
    except BaseException as error:
        attempt.note_commit()
        attempt.transaction.roll_back()
        if claim is None or not isinstance(error, Exception):
            raise
        if isinstance(error, DatabaseError) and store.code(error) in store.level_is_fixed:
            error.add_note(LEVEL_IS_FIXED)
        outcome = attempt.failed(work, error, finished)
        return _about(outcome, operation) if isinstance(outcome, Finished) else outcome, False


def _about(finished: Finished[T], operation: Operation | None) -> Finished[T]:
    """Return the result with the resource that the work has referred to, if there is one."""
    resource = None if operation is None else operation.resource
    return finished if resource is None else replace(finished, resource=resource)


@dataclass
class _Attempt:
    """One attempt: its transaction, which `claim` opens, and what happens to the key after an error.

    Attributes:
        is_committed: whether the error came after the COMMIT, from an `on_commit` callback.
    """

    store: Store
    request: ClaimRequest
    transaction: Transaction
    is_committed: bool = field(default=False, init=False)

    def claim(self) -> ClaimOutcome:
        """Claim the key in a transaction that stays open only if the claim succeeds."""
        store, request, own = self.store, self.request, self.transaction
        connection = own.connection
        if connection.connection is None and not connection.in_atomic_block:
            opened(connection)
        try:
            own.begin()
            claim = store.claim(request, connection)
            if isinstance(claim, Claimed):
                vars(own.block)[IDENTITY] = request.identity
                if "set_rollback" not in vars(connection):
                    _note_rollbacks(connection)
                report("claimed", request.identity, store.alias, attempt=claim.attempt)
                return claim
            if own.is_outermost:
                own.end()
            else:
                self._refuse_own_key()
                # Rolling back to the savepoint releases the key's lock, which would otherwise be held until the
                # caller's transaction ends.
                own.roll_back()
        except BaseException:
            own.roll_back()
            raise
        return claim

    def _refuse_own_key(self) -> None:
        """Raise an error if this work runs inside other work that already holds the same key."""
        identity, database = self.request.identity, self.store.alias
        if not any(vars(block).get(IDENTITY) == identity for block in self.transaction.connection.atomic_blocks):
            return
        problem = (
            f"The work of {identity.operation!r} came back to its own key, {identity.reference} on database "
            f"{database!r}, before it was done, for example by a signal receiver or a recursion. It was not run "
            "again. Call it outside that work, or give it an operation or a key of its own."
        )
        with harmless():  # the work may catch the error and continue
            logger.error(problem)
        raise IdempotencyConfigurationError(problem)

    def note_commit(self) -> None:
        # Django sets this flag after COMMIT, and keeps it set until all callbacks have run.
        self.is_committed = bool(self.transaction.connection.run_commit_hooks_on_set_autocommit_on)

    def hold_if_ended(self, claim: Claimed) -> None:
        """Hold the key if the work raised an exception after it had ended its own transaction.

        Anything that the work wrote after that was committed statement by statement, and a retry would write it again.
        """
        with suppress(Error):  # the caller must get what the work raised
            if self.store.has_ended(self.transaction.connection, claim):
                self._hold()

    def _hold(self) -> None:
        """Commit a claim that blocks every retry until a person decides.

        See Note [A committed claim without a lease].
        """
        self.transaction.connection.needs_rollback = False  # without a transaction there's nothing to roll back
        self.store.claim(self.request)

    def may_commit(self, claim: Claimed, returned: Finished[T]) -> bool:
        """Return whether to commit what the work wrote.

        As in Django, a normal return commits, except with a 5xx response or after `set_rollback(True)`. A view that
        returns a 4xx response after a database error may already have lost its writes, so only the response is stored.

        Raises:
            TransactionBroken: the answer reports writes that the database has discarded; or the work ended its
                transaction, so that its later statements were committed one by one.
        """
        if returned.verdict is not Verdict.ROLL_BACK and self.store.is_open(self.transaction.connection):
            self.transaction.refuse_if_torn()
            return True
        if self.store.has_ended(self.transaction.connection, claim):
            self._hold()
            raise TransactionBroken(
                "The view ended its own transaction in the middle: by a raw COMMIT or ROLLBACK, by a constraint or "
                "trigger that says ROLLBACK, or by executescript(), which commits. What it wrote after that is "
                "committed, so no retry runs: the key is held until a person decides about it. Use none of these in a "
                "protected view."
            )
        if returned.verdict is Verdict.ROLL_BACK:
            return False
        self.transaction.refuse_if_torn()
        connection = self.transaction.connection
        if connection.needs_rollback and ASKED in vars(self.transaction.block):
            return False  # the view knows that its writes are lost
        if not self.store.is_broken(connection):
            return True
        if returned.snapshot is not None and 400 <= returned.snapshot.status_code < 500:
            return False
        if connection.closed_in_transaction:
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
        """Return the outcome after an error. `finished` is the work's result, or None if the work returned none."""
        if (winner := self.winner(error, running=finished is None)) is not None:
            return winner
        if finished is not None or (answered := self.answer(work, error)) is None:
            raise error  # either the work had already returned, or it defines no response for this error
        return answered

    def refuse_if_all_is_lost(self) -> None:
        if self.transaction.connection.needs_rollback and not self.transaction.is_outermost:
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
        if not self.transaction.is_outermost or self.is_committed or not isinstance(error, DatabaseError):
            return None
        code = self.store.code(error)
        if code in self.store.lost and not running:
            return unavailable(self.store.alias, error)
        if code not in self.store.rolled_back:
            return None
        seen = self.store.look(self.request)
        # While the work is running, a deadlock may involve other rows. A duplicate has won only if it has stored a
        # result.
        return None if running and isinstance(seen, Conflicted) else seen

    def answer(self, work: Work[T], error: Exception) -> Finished[T] | None:
        """Return the framework's response to what the work raised.

        The claim and the work's writes have already been rolled back, unless the work ended its own transaction.
        """
        held, answered = self.is_held(), None
        try:
            answered = work.answer(error)
        finally:
            if answered is None:
                event = "held" if held else "released"
                report(event, self.request.identity, self.store.alias, reason=describe(error))
        return None if answered is None else replace(answered, held=held)

    def is_held(self) -> bool:
        """Whether the claim was committed when the work ended its transaction. If so, every retry is refused."""
        # In the caller's transaction, `look` might find a row that isn't committed; a closed connection can't be
        # queried.
        if not self.transaction.is_outermost or self.transaction.connection.connection is None:
            return False
        try:
            return isinstance(self.store.look(self.request), InDoubt)
        except (Error, IdempotencyError):
            return False


def _note_rollbacks(connection: Any) -> None:
    """Patch the connection's `set_rollback` so that it also marks the block that will be rolled back.

    Django itself only sets `needs_rollback`, just as it does after a database error. Without the mark, a view that
    calls `set_rollback(True)` for a dry run would look like a view that swallows a database error.
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
