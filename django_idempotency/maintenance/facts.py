"""What is known about a key and its steps. The admin, the commands and the decisions use these facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Prefetch, prefetch_related_objects
from django.utils import timezone

from ..engine.stores.states import HALF_DONE, IN_DOUBT, Clock, Seen
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import correctable

Kind = IdempotencyStep.Kind


@dataclass(frozen=True)
class Facts(Seen):
    """A row and its steps, in the order in which the steps were first started."""

    @cached_property
    def in_doubt(self) -> list[str]:
        """The names of the steps that were started and have no result, unless a worker is running them now."""
        return [step.name for step in self.doubts]

    @cached_property
    def finished(self) -> list[str]:
        """The names of the steps that have ended."""
        return [step.name for step in self.steps if step.finished_at is not None]

    @cached_property
    def write_in_doubt(self) -> bool:
        return any(step.kind == Kind.WRITE for step in self.doubts)

    @cached_property
    def recordable(self) -> list[str]:
        """The names of the steps in doubt, and of the steps whose result a person has recorded."""
        recorded = correctable(self.row)
        return [*self.in_doubt, *(name for name in self.finished if name in recorded)]

    def needs_word(self, action: str) -> bool:
        """Return whether a person must confirm what was found at the other side before this action.

        A release lets the retry make the calls in doubt again. Only the policy "retry" allows a release without a
        confirmation. The policy is only about calls, so a release with a write in doubt always needs a confirmation. A
        release of a key without a lease also needs a confirmation, because its work has committed writes. An answer to
        a key with a finished call needs a confirmation, because an answered key needs no attention any more, so a
        charge without an order could be forgotten.
        """
        if action == "release":
            on_hold = bool(self.in_doubt) and self.row.policy != IdempotencyKey.Policy.RETRY
            return on_hold or self.write_in_doubt or self.unleased
        return action == "answer" and self.state in (IN_DOUBT, HALF_DONE)


def facts_of(rows: Iterable[IdempotencyKey], *, results: bool = False) -> list[Facts]:
    """Read what is known about these rows of one database, in two queries. The facts have the order of the rows.

    If all rows are completed, no query is needed.

    results: if True, the results and errors of the steps are read too, also for completed keys. They can be large.
    """
    rows = list(rows)
    if not (rows and results) and all(row.status == IdempotencyKey.Status.COMPLETED for row in rows):
        return [Facts(row, [], timezone.now()) for row in rows]
    keys = IdempotencyKey.objects.using(rows[0]._state.db)
    steps = IdempotencyStep.objects.using(keys.db).order_by("pk")
    prefetch_related_objects(rows, Prefetch("steps", steps if results else steps.defer("result", "error")))
    now = keys.values_list(Clock(), flat=True).first() or timezone.now()
    return [Facts(row, list(row.steps.all()), now) for row in rows]
