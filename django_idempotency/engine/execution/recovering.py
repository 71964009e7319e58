"""One key that needs attention, and no client: take the key over, ask `reconcile`, and complete the key or put it back.

The key is claimed as a retry claims it: in a transaction of its own, with the next attempt and a lease. So a retry, or
another recovery, meets a claimed key, and a recovery that is killed leaves an abandoned attempt as any worker does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import DatabaseError

from ..events import report_outcome
from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Claimed, Conflicted, Finished, InDoubt, Outcome, Verdict
from ..stores import Store
from .durable import durable_transaction
from .leased import run_claimed
from .operation import Operation
from .steps import synchronous


class Asking:
    """`reconcile` in the place of the work.

    Args:
        reconcile: gets the operation, which has no request.
        finished: makes the end of the operation of what `reconcile` has returned.
        last_error: what the key keeps as its last error if `reconcile` returns None.
    """

    def __init__(
        self,
        reconcile: Callable[[Operation], Any],
        finished: Callable[[Any], Finished[Any]],
        last_error: str,
    ) -> None:
        self._reconcile = synchronous(reconcile)
        self._finished = finished
        self._last_error = last_error
        self.recorded: tuple[str, ...] = ()
        self.in_doubt: tuple[str, ...] = ()

    def run(self, operation: Operation) -> Finished[Any]:
        """Ask. None leaves the key to the next retry, with the steps as `reconcile` has left them."""
        before = operation.in_doubt
        returned = self._reconcile(operation)
        self.in_doubt = operation.in_doubt
        self.recorded = tuple(name for name in before if name not in self.in_doubt)
        if returned is None:
            return Finished(value=None, verdict=Verdict.ROLL_BACK, reason=self._last_error)
        return self._finished(returned)


def take_over(store: Store, wanted: ClaimRequest, attempt: int) -> Claimed | Conflicted | InDoubt:
    """Claim a key that needs attention, if it is still at this attempt. Commits, and must not run inside a transaction.

    Raises:
        IdempotencyConfigurationError: inside a transaction, or if a migration is missing.
        DatabaseError: from the database. Nothing was changed.
    """
    try:
        with durable_transaction(store, "recover_idempotency_keys"):
            return store.resume(wanted, attempt)
    except DatabaseError as error:
        if store.is_busy(error) or store.may_repeat(error):
            return Conflicted()
        store.explain(error)
        raise


def ask(store: Store, wanted: ClaimRequest, claim: Claimed, work: Asking) -> Outcome[Any]:
    """Ask `reconcile` under the claim, and complete the key or put it back.

    Returns:
        `Finished` with `Verdict.KEEP`: the key is completed. With another verdict: it waits for the next retry, as
        before. Else: another worker has taken the key over meanwhile.

    Raises:
        Exception: what `reconcile` raises. The key is failed, and its doubts are as they were.
    """
    outcome = run_claimed(store, wanted, claim, work.run)
    report_outcome(outcome, wanted.identity, store.alias)
    return outcome
