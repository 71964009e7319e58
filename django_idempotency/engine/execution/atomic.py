"""The atomic promise: claim, business write and stored result commit together, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from django.db import DatabaseError, transaction

from ...exceptions import TransactionBroken
from ..events import CLAIMED, RELEASED, report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, Completed, Conflicted, Finished, Mismatched, Unavailable, Verdict

if TYPE_CHECKING:
    from ..protocol.claims import ClaimRequest
    from ..protocol.outcomes import Outcome
    from ..stores import Store
    from .operation import Operation
    from .work import Work

T = TypeVar("T")


def run_atomically(store: Store, wanted: ClaimRequest, work: Work[T]) -> Outcome[T]:
    """Claim, run and keep the result in one transaction. See `execute`.

    A deadlock or a serialization failure of the claim is retried once, before anything has run, but only by the
    outermost transaction: inside an outer `atomic()`, or with autocommit off, only the caller can start again. The
    database may have rolled back the caller's writes as well.
    """
    claiming = wanted
    for _ in range(2):
        claim, running, outermost = None, False, False
        try:
            with transaction.atomic(using=store.alias):
                outermost = store.is_outermost()
                claiming = claiming.begun()  # not before: `wait` is not for opening a connection
                claim = store.claim(claiming)
                if not isinstance(claim, Claimed):
                    return claim
                report(CLAIMED, wanted.identity, store.alias, attempt=claim.attempt)
                running = True
                finished = work.run(None)
                hides_an_error = _hides_an_error(store, finished)
                running = False
                if not hides_an_error:
                    return _settle(store, claim, finished)
                transaction.set_rollback(True, using=store.alias)
            return _keep(store, wanted, finished)
        except Exception as error:
            if claim is not None:
                answered = _after_claim(store, wanted, work, error, outermost=outermost, running=running)
                if answered is None:
                    raise
                return answered
            if not isinstance(error, DatabaseError):
                raise
            if store.is_busy(error):
                return Unavailable()
            if not (outermost and store.may_repeat(error)):
                store.explain(error)
                raise
    return Conflicted()


def _after_claim(
    store: Store, wanted: ClaimRequest, work: Work[T], error: Exception, *, outermost: bool, running: bool
) -> Outcome[T] | None:
    """The answer to an exception that came after the claim. None: there is no other answer than the exception."""
    winner = _winner(store, wanted, error, running=running) if outermost else None
    if winner is not None:
        return winner
    # Only exceptions of the work are answered. Those of COMMIT and of `on_commit` callbacks come later.
    return _answer(store, wanted, work, error) if running else None


def _winner(
    store: Store, wanted: ClaimRequest, error: Exception, *, running: bool
) -> Completed | Mismatched | Conflicted | None:
    """The answer of a duplicate, if this transaction was rolled back because another one has committed this key.

    On one server the claim finds the other transaction. Nodes of a Galera cluster find it at COMMIT, or when they end a
    statement of the work. None: the error is about something else.
    """
    # This flag is still set when a callback of `on_commit` raises: then our own transaction has committed.
    committed = store.connection.run_commit_hooks_on_set_autocommit_on
    if committed or not isinstance(error, DatabaseError) or not store.was_rolled_back(error):
        return None
    seen = store.look(wanted)
    # A deadlock about rows of the work is the work's own error.
    return None if running and isinstance(seen, Conflicted) else seen


def _settle(store: Store, claim: Claimed, finished: Finished[T]) -> Finished[T]:
    """Return commits, as in Django. The one exception: a returned 5xx rolls back, so that a retry starts clean."""
    if finished.verdict is Verdict.ROLL_BACK:
        transaction.set_rollback(True, using=store.alias)
    elif finished.snapshot is not None:
        store.complete(claim, finished.snapshot, last=True)
    else:
        store.release(claim, last=True)
    return finished


def _hides_an_error(store: Store, finished: Finished[T]) -> bool:
    """Whether the work caught a database error, after which the database discarded all its writes.

    A refusal (4xx) needs no writes, and is kept later by `_keep`.

    Raises:
        TransactionBroken: for any other answer, which would promise work that did not commit.
    """
    if finished.verdict is Verdict.ROLL_BACK or not store.is_broken():
        return False
    if finished.snapshot is not None and 400 <= finished.snapshot.status_code < 500:
        return True
    raise TransactionBroken(
        "The view caught a database error, after which the database discarded all its writes, and returned as if "
        "nothing had happened. Put the statement that may fail into its own `with transaction.atomic():` block."
    )


def _answer(store: Store, wanted: ClaimRequest, work: Work[T], error: Exception) -> Outcome[T] | None:
    """What the framework makes of the work's exception. Its writes and the claim are rolled back already."""
    try:
        finished = work.answer(error)
    except Exception:
        report(RELEASED, wanted.identity, store.alias, reason=describe(error))
        raise
    if finished is None:
        report(RELEASED, wanted.identity, store.alias, reason=describe(error))
        return None
    return finished if finished.verdict is not Verdict.KEEP else _keep(store, wanted, finished)


def _keep(store: Store, wanted: ClaimRequest, finished: Finished[T]) -> Outcome[T]:
    """Keep an answer whose own transaction is gone, under a second claim. A request that was faster wins.

    Raises:
        TransactionBroken: if the database has rolled back the caller's writes, too. Then only the caller can go on.
    """
    if store.connection.needs_rollback:
        raise TransactionBroken(
            "The database has rolled back the whole transaction: a deadlock, for example. What was written before this "
            "operation, in the same transaction, is lost. Roll back, and start that transaction again."
        )
    return run_atomically(store, wanted, _Done(finished))


class _Done(Generic[T]):
    """Work that has run already."""

    def __init__(self, finished: Finished[T]) -> None:
        self.finished = finished

    def run(self, operation: Operation | None) -> Finished[T]:
        return self.finished

    def answer(self, error: Exception) -> None:
        return None

    def reconcile(self, operation: Operation) -> None:
        return None
