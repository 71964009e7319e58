"""What the engine runs: a protected view, or the function of `run_once`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ..protocol.outcomes import Finished
    from .operation import Operation

T = TypeVar("T")


class Work(Protocol[T]):
    """Work that must run once, and how its result is judged."""

    def run(self, operation: Operation) -> Finished[T]:
        """Do the work: in atomic mode, inside the transaction of the claim.

        Args:
            operation: the handle of the work. Only that of leased work has steps.

        Raises:
            Exception: what the work raises. Its writes are rolled back.
        """

    def answer(self, error: Exception) -> Finished[T] | None:
        """What a framework answers to an exception of the work. Called after the rollback, while it is handled.

        Returns:
            The judged answer, or None if `error` should go on to the caller.
        """

    def reconcile(self, operation: Operation) -> Finished[T] | None:
        """Ask the project what became of an abandoned attempt.

        Returns:
            The final result, or None to run the work again.
        """
