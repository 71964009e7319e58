"""What is known about a key and its steps, read once: for its page, for a list, for a command, and under its lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Prefetch, prefetch_related_objects
from django.utils import timezone

from ..engine.stores.states import Clock, Seen
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import correctable

Kind = IdempotencyStep.Kind


@dataclass(frozen=True)
class Facts(Seen):
    """A row and its steps in the order in which they were first started, in the words of a decision."""

    @cached_property
    def in_doubt(self) -> list[str]:
        """Names of the steps that were started and have no result, unless a worker is running them now."""
        return [step.name for step in self.doubts]

    @cached_property
    def finished(self) -> list[str]:
        """Names of the steps that have ended."""
        return [step.name for step in self.steps if step.finished_at is not None]

    @cached_property
    def write_in_doubt(self) -> bool:
        return any(step.kind == Kind.WRITE for step in self.doubts)

    @cached_property
    def recordable(self) -> list[str]:
        """Names of the steps in doubt, and of those whose result a person has recorded."""
        recorded = correctable(self.row)
        return [*self.in_doubt, *(name for name in self.finished if name in recorded)]

    def needs_word(self, action: str) -> bool:
        """Whether a person has to say what was found outside, before this action is taken.

        A release makes calls in doubt again. Only the policy "retry" allows that without a look; a policy speaks of
        calls, so never of a write in doubt, nor of what a key without a lease has committed. An answer by hand ends
        all attention: a charge whose order is missing would be forgotten.
        """
        if action == "release":
            on_hold = bool(self.in_doubt) and self.row.policy != IdempotencyKey.Policy.RETRY
            return on_hold or self.write_in_doubt or self.unleased
        return action == "answer" and bool(self.called or self.doubts or self.unleased)


def facts_of(rows: Iterable[IdempotencyKey], *, results: bool = False) -> list[Facts]:
    """Read what is known about these rows of one database, in their order: two queries. None if all are completed.

    results: also read what may be large: the results and errors of the steps, of completed keys, too.
    """
    rows = list(rows)
    if not (rows and results) and all(row.status == IdempotencyKey.Status.COMPLETED for row in rows):
        return [Facts(row, [], timezone.now()) for row in rows]
    keys = IdempotencyKey.objects.using(rows[0]._state.db)
    steps = IdempotencyStep.objects.using(keys.db).order_by("pk")
    prefetch_related_objects(rows, Prefetch("steps", steps if results else steps.defer("result", "error")))
    now = keys.values_list(Clock(), flat=True).first() or timezone.now()
    return [Facts(row, list(row.steps.all()), now) for row in rows]
