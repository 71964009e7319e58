"""The one door of execution: run work once, in one transaction or under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..events import report_outcome
from ..protocol.outcomes import InDoubt
from .atomic import note_left_behind, run_atomically
from .leased import run_leased

if TYPE_CHECKING:
    from ..protocol.claims import ClaimRequest
    from ..protocol.outcomes import Outcome
    from ..stores import Store
    from .work import Work

T = TypeVar("T")


def execute(store: Store, wanted: ClaimRequest, work: Work[T]) -> Outcome[T]:
    """Run `work` once for this key, or say why it did not run.

    Atomic mode opens one transaction of the store's alias (inside an outer `atomic()`: a savepoint). Leased mode, which
    `wanted.lease` chooses, commits step by step and refuses to start inside a transaction.

    Raises:
        Exception: what the work raises and `work.answer` does not answer; what COMMIT and `on_commit` callbacks raise;
            database errors of the claim.
    """
    run = run_atomically if wanted.lease is None else run_leased
    outcome = run(store, wanted, work)
    if isinstance(outcome, InDoubt):
        note_left_behind(store, wanted, "a retry has found it. Its worker has died, or is still at work.")
    report_outcome(outcome, wanted.identity, store.alias)
    return outcome
