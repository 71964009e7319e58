"""What is known about a key and its steps, read once: for its page, for a list, for a command, and under its lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.utils import timezone

from ..models import IdempotencyKey, IdempotencyStep
from .decisions import correctable
from .lookups import database_now

Status, Kind = IdempotencyKey.Status, IdempotencyStep.Kind
CHUNK = 1000
"""Keys whose steps are read at once. A database takes some thousands of parameters in a statement."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A key, its steps in the order in which they were first started, and the database's time when they were read."""

    row: IdempotencyKey
    steps: list[IdempotencyStep]
    now: datetime

    @property
    def live(self) -> bool:
        """Whether a worker holds a lease that is not over."""
        return self.row.locked_until is not None and self.row.locked_until > self.now

    @property
    def undecided(self) -> bool:
        """Whether a person may decide about the key: it is not completed, and no worker holds it under a lease."""
        return self.row.status != Status.COMPLETED and not self.live

    @property
    def unleased(self) -> bool:
        """Whether the key is in progress without a lease: its work has ended its own transaction."""
        return self.row.status == Status.IN_PROGRESS and self.row.locked_until is None

    @cached_property
    def doubts(self) -> list[str]:
        """Names of the steps that were started and have no result, unless a worker is running them now."""
        return [step.name for step in self.steps if step.finished_at is None] if self.undecided else []

    @cached_property
    def finished(self) -> list[str]:
        """Names of the steps that have ended."""
        return [step.name for step in self.steps if step.finished_at]

    @cached_property
    def called(self) -> list[str]:
        """Names of the external calls that have ended: what they did outside is done."""
        return [step.name for step in self.steps if step.finished_at and step.kind == Kind.CALL]

    @cached_property
    def write_in_doubt(self) -> bool:
        return bool(self.doubts) and any(s.finished_at is None and s.kind == Kind.WRITE for s in self.steps)

    @cached_property
    def recordable(self) -> list[str]:
        """Names of the steps in doubt, and of those whose result a person has recorded."""
        recorded = correctable(self.row)
        return [*self.doubts, *(name for name in self.finished if name in recorded)]

    @property
    def state(self) -> str:
        """The worst state that is true of the key."""
        if self.row.status == Status.COMPLETED:
            return "completed"
        if self.live:
            return "in_flight"
        if self.doubts:
            return "in_doubt"
        if self.called:
            return "half_done"
        return "failed" if self.row.status == Status.FAILED else "stuck"

    def needs_word(self, action: str) -> bool:
        """Whether a person has to say what was found outside, before this action is taken.

        A release makes calls in doubt again. Only the policy "retry" allows that without a look; a policy speaks of
        calls, so never of a write in doubt, nor of what a key without a lease has committed. An answer by hand ends
        all attention: a charge whose order is missing would be forgotten.
        """
        if action == "release":
            on_hold = bool(self.doubts) and self.row.policy != IdempotencyKey.Policy.RETRY
            return on_hold or self.write_in_doubt or self.unleased
        return action == "answer" and bool(self.called)


def facts_of(rows: Iterable[IdempotencyKey], *, results: bool = False) -> list[Facts]:
    """Read what is known about these rows of one database, in their order: two queries. None if all are completed.

    results: also read what may be large: the results and errors of the steps, of completed keys, too.
    """
    rows = list(rows)
    open_ = [row.pk for row in rows if results or row.status != Status.COMPLETED]
    if not open_:
        return [Facts(row=row, steps=[], now=timezone.now()) for row in rows]
    using = str(rows[0]._state.db)
    now = database_now(IdempotencyKey.objects.using(using).order_by()) or timezone.now()
    steps: dict[int, list[IdempotencyStep]] = defaultdict(list)
    for start in range(0, len(open_), CHUNK):
        found = IdempotencyStep.objects.using(using).filter(key__in=open_[start : start + CHUNK]).order_by("pk")
        for step in found if results else found.defer("result", "error"):
            steps[step.key_id].append(step)
    return [Facts(row=row, steps=steps[row.pk], now=now) for row in rows]
