"""The atomic promise: claim, business write and stored result commit together, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, transaction

from ...exceptions import TransactionBroken
from ..events import CLAIMED, RELEASED, tell, tell_answer
from ..protocol.claims import ClaimRequest
from ..protocol.error_text import describe
from ..protocol.outcomes import Answer, Claimed, Conflicted, Discarded, Finished, Raised, Unavailable, Verdict
from ..stores import Store

T = TypeVar("T")
Work = Callable[[], Finished[T] | Raised]


def run_atomically(
    store: Store, claim: ClaimRequest, work: Work[T], answer: Callable[[Exception], Finished[T]]
) -> Answer[T]:
    """Run `work` once for this claim, in one transaction of the store's alias.

    Opens the transaction (inside an outer `atomic()`: a savepoint). `work` returns what it came to, or `Raised`.
    `answer` turns an exception of the work into a finished answer, outside that transaction, or raises it.
    Raises what `answer` raises, what COMMIT and `on_commit` callbacks raise, and database errors of the claim.
    """
    answered = _run(store, claim, work, answer)
    tell_answer(answered, claim.identity, store.alias)
    return answered


def _run(store: Store, claim: ClaimRequest, work: Work[T], answer: Callable[[Exception], Finished[T]]) -> Answer[T]:
    result = _claim_and_work(store, claim, work)
    match result:
        case Raised(error):
            try:
                finished = answer(error)
            except Exception:
                tell(RELEASED, claim.identity, store.alias, reason=describe(error))
                raise
        case Discarded(refusal):
            finished = refusal
        case _:
            return result
    if finished.verdict is not Verdict.KEEP:
        return finished
    # The writes are gone and so is the claim. Keep the answer under a claim of its own; whoever was faster wins.
    kept = _claim_and_work(store, claim, lambda: finished)
    if isinstance(kept, (Raised, Discarded)):
        raise RuntimeError(f"Bug: keeping an answer came to {kept!r}.")
    return kept


def _claim_and_work(store: Store, claim: ClaimRequest, work: Work[T]) -> Answer[T] | Raised | Discarded[T]:
    outermost = not store.connection.in_atomic_block
    for _ in range(2):
        outcome = None
        try:
            with transaction.atomic(using=store.alias):
                outcome = store.claim(claim)
                if isinstance(outcome, Claimed):
                    tell(CLAIMED, claim.identity, store.alias, attempt=outcome.attempt)
                    return _settle(store, outcome, work())
                return outcome
        except DatabaseError as error:
            if outcome is not None:
                raise  # from COMMIT or later: not about the claim
            if store.is_busy(error):
                return Unavailable()
            # Nothing has run yet. Inside somebody else's transaction only they can start afresh.
            if not (outermost and store.may_repeat(error)):
                store.explain(error)
                raise
    return Conflicted()


def _settle(store: Store, claimed: Claimed, result: Finished[T] | Raised) -> Finished[T] | Raised | Discarded[T]:
    """Raise rolls back, return commits: Django's own rule, with a returned 5xx as the one exception."""
    if isinstance(result, Raised) or result.verdict is Verdict.ROLL_BACK:
        transaction.set_rollback(True, using=store.alias)
        return result
    if store.is_broken():
        transaction.set_rollback(True, using=store.alias)
        return _after_a_hidden_error(result)
    if result.snapshot is not None:
        store.complete(claimed, result.snapshot, last=True)
    else:
        store.release(claimed, last=True)
    return result


def _after_a_hidden_error(result: Finished[T]) -> Raised | Discarded[T]:
    """A refusal may stand without the writes; anything else would promise work that did not commit."""
    if result.snapshot is not None and 400 <= result.snapshot.status_code < 500:
        return Discarded(result)
    return Raised(
        TransactionBroken(
            "The view caught a database error, after which the database discarded all its writes, and returned as if "
            "nothing had happened. Put the statement that may fail into its own `with transaction.atomic():` block."
        )
    )
