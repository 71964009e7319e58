"""The atomic promise: claim, business write and stored result commit together, or not at all."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from django.db import DatabaseError, Error, transaction

from ...exceptions import TransactionBroken
from ..events import CLAIMED, HELD, RELEASED, report
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, Completed, Conflicted, Finished, InDoubt, Mismatched, Unavailable, Verdict
from .atomic_operation import AtomicOperation
from .bridge import NoBridgeAbove

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from ..protocol.claims import ClaimRequest
    from ..protocol.digests import Identity
    from ..protocol.outcomes import ClaimOutcome, Outcome
    from ..stores import Store
    from .operation import Operation
    from .work import Work

T = TypeVar("T")
TRIES, TRIES_WITH_WAIT = 2, 10
"""How often a claim is tried. A rival for an expired key may lose several deadlocks before one of the rivals has won.
With `wait` it shall get the winner's result. All tries share `wait`, and after its end none waits any more."""
_RUNNING: WeakKeyDictionary[BaseDatabaseWrapper, list[Identity]] = WeakKeyDictionary()
"""The keys whose work runs on a connection: their uncommitted rows are visible to this connection alone."""
LEFT_BEHIND = (
    "The view ended its own transaction in the middle (a COMMIT, or DDL on MariaDB). What it wrote before that is "
    "committed, and the view did not come to its end: {}"
)


def run_atomically(store: Store, wanted: ClaimRequest, work: Work[T]) -> Outcome[T]:
    """Claim, run and keep the result in one transaction. See `execute`.

    A deadlock or a serialization failure of the claim is retried, before anything has run, but only by the outermost
    transaction: inside an outer `atomic()`, or with autocommit off, only the caller can start again. The database may
    have rolled back the caller's writes as well.
    """
    claiming, connection = wanted, store.connection  # each look-up costs a microsecond
    for _ in range(TRIES_WITH_WAIT if wanted.wait else TRIES):
        claim, running, outermost = None, False, False
        try:
            with transaction.atomic(using=store.alias):
                outermost = store.is_outermost(connection)
                claiming = claiming.begun()  # not before: `wait` is not for opening a connection
                claim = _claim(store, claiming, outermost=outermost)
                if not isinstance(claim, Claimed):
                    return claim
                report(CLAIMED, wanted.identity, store.alias, attempt=claim.attempt)
                running = True
                operation = AtomicOperation(wanted.identity, claim.attempt)
                with NoBridgeAbove(), _Running(store, connection, wanted, claim):
                    finished = work.run(operation).about(operation.resource)
                hides_an_error = _hides_an_error(store, connection, wanted, claim, finished)
                running = False
                rolls_back = hides_an_error or finished.verdict is Verdict.ROLL_BACK
                _settle(store, claim, finished, rolls_back=rolls_back)
            if rolls_back:
                note_left_behind(store, wanted, finished.reason)
            return _keep(store, wanted, finished) if hides_an_error else finished
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
) -> Completed | Mismatched | Conflicted | InDoubt | None:
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


def _claim(store: Store, wanted: ClaimRequest, *, outermost: bool) -> ClaimOutcome:
    claim: ClaimOutcome = store.claim(wanted)
    if isinstance(claim, InDoubt) and wanted.identity in _RUNNING.get(store.connection, ()):
        claim = Conflicted()  # the work asks for its own key, in the transaction of its own claim
    if not (outermost or isinstance(claim, Claimed)):
        # Back to the savepoint: the caller's transaction goes on, and must not keep the lock of the key.
        transaction.set_rollback(True, using=store.alias)
    return claim


class _Running:
    """The work runs, and its connection knows the key. If it ends its own transaction and then raises, the key is held.

    See `_hides_an_error`. A class, because a function would be one more frame in the traceback of each view.
    """

    def __init__(self, store: Store, connection: BaseDatabaseWrapper, wanted: ClaimRequest, claim: Claimed) -> None:
        self._store, self._connection, self._wanted, self._claim = store, connection, wanted, claim

    def __enter__(self) -> None:
        _RUNNING.setdefault(self._connection, []).append(self._wanted.identity)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _RUNNING[self._connection].remove(self._wanted.identity)
        if error is not None:
            with suppress(Error):  # the caller must see the error of the work
                if self._store.has_ended(self._connection, self._claim):
                    self._connection.needs_rollback = False  # there is nothing to roll back
                    self._store.claim(self._wanted)


def _settle(store: Store, claim: Claimed, finished: Finished[T], *, rolls_back: bool) -> None:
    """Return commits, as in Django. The one exception: a returned 5xx rolls back, so that a retry starts clean."""
    if rolls_back:
        transaction.set_rollback(True, using=store.alias)
    elif finished.snapshot is not None:
        store.complete(claim, finished.snapshot, resource=finished.resource, last=True)
    else:
        store.release(claim)


def _hides_an_error(
    store: Store, connection: BaseDatabaseWrapper, wanted: ClaimRequest, claim: Claimed, finished: Finished[T]
) -> bool:
    """Whether the work caught a database error, after which the database discarded all its writes.

    A refusal (4xx) needs no writes, and is kept later by `_keep`.

    Raises:
        TransactionBroken: for any other answer, which would promise work that did not commit. For every answer, if the
            work has ended the transaction, and each of its statements since then was committed by itself.
    """
    if store.has_ended(connection, claim):
        # What the work has written since then is committed. Claim the key outside of every transaction: the key is
        # held for a person, as a claim without a lease, and no retry writes again.
        store.claim(wanted)
        raise TransactionBroken(
            "The view ended its own transaction in the middle: by a raw COMMIT or ROLLBACK, by a constraint or trigger "
            "that says ROLLBACK, or by executescript(), which commits. What it wrote after that is committed. So no "
            "retry runs: the key is held until a person decides about it. Use none of them in a protected view."
        )
    if finished.verdict is Verdict.ROLL_BACK or not store.is_broken(connection):
        return False
    if finished.snapshot is not None and 400 <= finished.snapshot.status_code < 500:
        return True
    raise TransactionBroken(
        "The view caught a database error, after which the database discarded all its writes, and returned as if "
        "nothing had happened. Put the statement that may fail into its own `with transaction.atomic():` block."
    )


def _answer(store: Store, wanted: ClaimRequest, work: Work[T], error: Exception) -> Outcome[T] | None:
    """What the framework makes of the work's exception. Its writes and the claim are rolled back already."""
    event = HELD if note_left_behind(store, wanted, describe(error)) else RELEASED
    try:
        finished = work.answer(error)
    except Exception:
        report(event, wanted.identity, store.alias, reason=describe(error))
        raise
    if finished is None:
        report(event, wanted.identity, store.alias, reason=describe(error))
        return None
    return finished if finished.verdict is not Verdict.KEEP else _keep(store, wanted, finished)


def note_left_behind(store: Store, wanted: ClaimRequest, reason: str) -> bool:
    """Note it if the claim is committed, although its work has not come to its end.

    Then the work has ended its own transaction. See Note [A committed claim without a lease]. Never raises: without the
    note, the next retry finds the row, or a cleanup after its `ttl`.
    """
    connection = store.connection
    if connection.in_atomic_block or connection.connection is None or not connection.get_autocommit():
        return False  # the row, if there is one, is not committed yet, or the server cannot be asked
    try:
        return store.note_unleased(wanted.identity, LEFT_BEHIND.format(reason))
    except Error:
        return False


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

    def run(self, operation: Operation) -> Finished[T]:
        return self.finished

    def answer(self, error: Exception) -> None:
        return None

    def reconcile(self, operation: Operation) -> None:
        return None
