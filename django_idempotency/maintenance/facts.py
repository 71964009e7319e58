"""What a key's row and steps reveal about the key, for use in the admin, the commands and `resolution.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from django.db.models import BooleanField, ExpressionWrapper
from django.utils import timezone

from ..engine.conf import get_settings
from ..engine.conf.fields import seconds_of
from ..engine.stores.journal import LOST
from ..engine.stores.sealing import unseal
from ..engine.stores.states import HALF_DONE, IN_DOUBT, Clock, Seen
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import correctable

if TYPE_CHECKING:
    from django.db.models import QuerySet

Kind = IdempotencyStep.Kind


@dataclass(frozen=True)
class Facts(Seen):
    """A key's row with its steps, oldest first."""

    steps: Sequence[IdempotencyStep]

    @cached_property
    def doubts(self) -> list[IdempotencyStep]:
        """The unfinished steps, or none while a worker holds the key, because then nothing is in doubt."""
        return [step for step in self.steps if step.finished_at is None] if self.idle else []

    @cached_property
    def in_doubt(self) -> list[str]:
        return [step.name for step in self.doubts]

    @cached_property
    def finished(self) -> list[str]:
        return [step.name for step in self.steps if step.finished_at is not None]

    @cached_property
    def lost(self) -> list[str]:
        """The calls that took effect, but whose values could not be stored."""
        return [step.name for step in self.steps if getattr(step, "lost", False)]

    @cached_property
    def unkeyed(self) -> list[str]:
        """The calls in doubt that the called service may not recognize if they are repeated.

        Some of these calls were started at least once without a derived key. Others were first started so long ago that
        the called service may have forgotten the key. "retry-keyed" does not repeat these calls.
        """
        oldest = self.now - timedelta(seconds=seconds_of(get_settings().derived_keys_last))
        calls = [step for step in self.doubts if step.kind == Kind.CALL]
        return [step.name for step in calls if not step.keyed or step.started_at <= oldest]

    @cached_property
    def unreadable(self) -> bool:
        """Whether a retry would raise `NotDecryptable` for the stored response or for a step's result."""
        row = self.row
        try:
            if row.status == IdempotencyKey.Status.COMPLETED:
                unseal(row, "headers", row.headers, row.status_code, row.fingerprint)
            for step in self.steps:
                unseal(row, "result", step.result, step.name)
        except NotDecryptable:
            return True
        return False

    @cached_property
    def write_in_doubt(self) -> bool:
        return any(step.kind == Kind.WRITE for step in self.doubts)

    @cached_property
    def recordable(self) -> list[str]:
        """The steps for which a person can record a result: those in doubt, those whose value was lost, and those
        whose result a person has already recorded.
        """
        recorded = correctable(self.row)
        return [*self.in_doubt, *(name for name in self.finished if name in recorded or name in self.lost)]

    def needs_word(self, action: str) -> bool:
        """Whether a person must confirm this action, after looking at what the earlier attempts have done.

        A release lets the next retry repeat what is in doubt. With the "retry" policy, it needs confirmation only if a
        write is in doubt, or if the key is in progress and has no lease. Closing a key removes it from all lists of
        keys that need attention. If the key is in doubt or half done, this must therefore be confirmed, because a
        customer may have paid without getting an order.
        """
        if action == "release":
            on_hold = bool(self.in_doubt) and self.row.policy != IdempotencyKey.Policy.RETRY
            return on_hold or self.write_in_doubt or self.unleased
        return action == "answer" and self.state in (IN_DOUBT, HALF_DONE)


def facts_of(rows: Iterable[IdempotencyKey], *, steps: bool = False, results: bool = False) -> list[Facts]:
    """Return the facts about each row, in the same order. All rows must be in the same database.

    This takes two queries, no matter how many rows there are: one for the database's time, by which keys expire, and
    one for the steps. The query for the steps is left out if all keys are completed and both arguments are False.

    Args:
        steps: whether to read the steps even if all keys are completed.
        results: whether to read the steps with their results and errors, which can be large.
    """
    rows = list(rows)
    if not rows:
        return []
    keys = IdempotencyKey.objects.using(rows[0]._state.db)
    now = keys.values_list(Clock(), flat=True).first() or timezone.now()  # if the rows have been deleted meanwhile
    steps_of = defaultdict(list)
    if steps or results or any(row.status != IdempotencyKey.Status.COMPLETED for row in rows):
        rows_of_steps = IdempotencyStep.objects.using(keys.db).filter(key__in=[row.pk for row in rows])
        rows_of_steps = with_lost(rows_of_steps.order_by("pk"))
        for step in rows_of_steps if results else rows_of_steps.defer("result", "error"):
            steps_of[step.key_id, step.key_hash, step.scope_hash].append(step)
    return [Facts(row, now, steps_of[row.pk, row.key_hash, row.scope_hash]) for row in rows]


def with_lost(steps: QuerySet[IdempotencyStep]) -> QuerySet[IdempotencyStep]:
    """Annotate each step with `lost`, which says whether its value was lost. The values are not read."""
    return steps.annotate(lost=ExpressionWrapper(LOST, BooleanField()))
