"""How does a piece of work run once?

It runs in the same way for views (even if only observed), for `run_once` and for recoveries.

A mode is a subclass of `Runner` in its own module, registered in `conf/modes.py`. An endpoint's `options.runner` is an
instance of its mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from django.db import router

from ...models import IdempotencyKey
from ..conf import Options, get_settings
from ..conf.modes import Mode
from ..events import report, report_outcome
from ..protocol.digests import identify
from ..protocol.outcomes import Completed, Finished, InDoubt, Outcome, Unavailable, Withheld
from ..stores.transactions import atomically
from .bridge import without_bridge_above
from .claiming import reached
from .operation import Operation

if TYPE_CHECKING:
    from ..protocol.digests import Identity
    from ..protocol.outcomes import ClaimRequest
    from .steps import StepJournal

T = TypeVar("T")
VIEW = "a leased view"


class Work(ABC, Generic[T]):
    """Work that runs once, and that decides which of its results are final.

    Attributes:
        title: what the error message calls the work if it is refused inside a transaction.
    """

    title: ClassVar[str] = VIEW

    @abstractmethod
    def run(self, operation: Operation) -> Finished[T]:
        """Do the work; in atomic mode, it runs inside the claim's transaction. Only leased work can use steps.

        Raises:
            Exception: whatever the work raises. What the work wrote is rolled back, except for finished steps.
        """

    def answer(self, error: Exception) -> Finished[T] | None:
        """Return the framework's response to the exception that the work raised, or None to let it propagate.

        Called after the rollback.
        """
        return None

    def reconcile(self, operation: Operation) -> Finished[T] | None:
        """Ask the project's `reconcile` for the final result of an abandoned attempt.

        If it returns None, the work runs again.
        """
        return None

    def may_replay(self) -> bool:
        """Return whether this caller may get the stored result."""
        return True


class Runner(Mode):
    """Claims a key, runs the work, and completes or releases the key.

    Attributes:
        options: the endpoint's options.
        has_steps: whether the work has steps. If so, it is always passed its operation.
        claims_first: whether the claim is committed before the work runs.
        limits_results: whether a result can be too long to be stored.
    """

    options: Options
    has_steps: ClassVar[bool] = False
    claims_first: ClassVar[bool] = True
    limits_results: ClassVar[bool] = False

    # --- what differs

    @abstractmethod
    def run(self, store: Any, request: ClaimRequest, work: Work[T]) -> Outcome[T]:
        """Run the work if its key can be claimed. Return how that ended, or why the work did not run.

        Args:
            store: the `Store` of the database that keeps the key, or None if no database does.
        """

    @abstractmethod
    def journal(self, operation: str) -> StepJournal:
        """Return a journal for work that runs without protection."""

    @abstractmethod
    def described(self) -> str:
        """Return the mode's name for the list of endpoints."""

    def promise(self) -> str:
        """Return what the API's specification says about this mode, or an empty string."""
        return ""

    # --- the same in every mode

    def alias(self) -> str | None:
        """See `Mode`. This is the `using` option, or the alias that the database routers choose for this request."""
        return self.options.using or router.db_for_write(IdempotencyKey)

    def perform(self, request: ClaimRequest, work: Work[T], alias: str | None = None) -> Outcome[T]:
        """Run the work once for its key, and report how that ended. The caller must check `pauses` first.

        A recovery is not a client, so replays and refusals are not reported for it. A recovery reports only the end of
        the work, or that `reconcile` doesn't know the outcome yet.

        Args:
            alias: the database that keeps the key, if it is not the one where a new key would be kept.
        """
        if alias is None:
            alias = self.alias()
        store = None if alias is None else reached(alias)
        outcome = store if isinstance(store, Unavailable) else self.run(store, request, work)
        if isinstance(outcome, Completed) and not work.may_replay():
            outcome = Withheld()
        undecided = isinstance(outcome, InDoubt) and outcome.undecided
        if not request.known_only or undecided or isinstance(outcome, Finished):
            self.report_end(outcome, request.identity, alias, self.options.backend)
        return outcome

    report_end = staticmethod(report_outcome)
    """Reports how the work ended, or why it did not run."""

    def pauses(self, operation: str) -> bool:
        """Return whether `PAUSED` is on, and report the pause if it is. Called before the key is read."""
        if paused := get_settings().pauses():
            self.report_unread("paused", operation)
        return paused

    def report_unread(self, event: str, operation: str) -> None:
        """Report an event of a request whose key is not known."""
        report(event, identify(scope="", operation=operation, key=""), self.alias(), backend=self.options.backend)

    def bare(self, work: Callable[[], T]) -> T:
        """Run the work of `run_once` without protection, but in a transaction if protected work would run in one.

        Raises:
            IdempotencyConfigurationError: a transaction is open in which protected work would be refused.
        """
        if not self.claims_first:
            return atomically(self.alias(), partial(without_bridge_above, work))
        self.journal("").refuse_transactions(VIEW)
        return work()

    def without_key(self, operation: str, derives_from: Identity | None) -> Operation:
        """Return the operation for work that runs without protection.

        Its steps behave like those of protected work, but are not stored.
        """
        return Operation(None, journal=self.journal(operation), derives_from=derives_from)
