"""This module collects what is known about a key and its steps.

The admin, the commands and the functions for decisions use this module.
"""

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
    """A `Facts` object contains the row of a key and the steps of this key. The oldest step comes first."""

    @cached_property
    def in_doubt(self) -> list[str]:
        """Return the names of the steps that were started and have no result.

        If a worker is processing the key now, the list is empty, because no step is in doubt.
        """
        return [step.name for step in self.doubts]

    @cached_property
    def finished(self) -> list[str]:
        """Return the names of the steps that have ended."""
        return [step.name for step in self.steps if step.finished_at is not None]

    @cached_property
    def write_in_doubt(self) -> bool:
        return any(step.kind == Kind.WRITE for step in self.doubts)

    @cached_property
    def recordable(self) -> list[str]:
        """Return the names of the steps for which a person can record a result. A person can record a result for a step
        in doubt. If a person has recorded a result, a person can replace this result later.
        """
        recorded = correctable(self.row)
        return [*self.in_doubt, *(name for name in self.finished if name in recorded)]

    def needs_word(self, action: str) -> bool:
        """Return whether a person must confirm this action. Before the confirmation, the person must find out what the
        earlier attempts have done.

        After the action "release", the next retry repeats each call that is in doubt. So if a call is in doubt, a
        release needs a confirmation. But if the policy is "retry", a call in doubt needs no confirmation. The policy is
        used only for `call` steps. So if a write is in doubt, a release always needs a confirmation. If the key is in
        progress and has no lease, a release needs a confirmation, too. Perhaps the work of this key has committed some
        writes.

        The action "answer" needs a confirmation if the key has a step in doubt, or a call that is finished. The action
        also needs a confirmation if the key is in progress and has no lease. After the action "answer", no list shows
        the key any more. So a person must first make sure that no customer has paid without an order.
        """
        if action == "release":
            on_hold = bool(self.in_doubt) and self.row.policy != IdempotencyKey.Policy.RETRY
            return on_hold or self.write_in_doubt or self.unleased
        return action == "answer" and self.state in (IN_DOUBT, HALF_DONE)


def facts_of(rows: Iterable[IdempotencyKey], *, results: bool = False) -> list[Facts]:
    """Return one `Facts` object for each row, in the order of the rows. All rows must be in the same database.

    The function runs only two queries, even for many rows. If `results` is False and all keys are completed, the
    function runs no query.

    Args:
        results: if True, the function also reads the results and errors of the steps, also for completed keys. Results
            and errors can be large.
    """
    rows = list(rows)
    if not (rows and results) and all(row.status == IdempotencyKey.Status.COMPLETED for row in rows):
        return [Facts(row, [], timezone.now()) for row in rows]
    keys = IdempotencyKey.objects.using(rows[0]._state.db)
    steps = IdempotencyStep.objects.using(keys.db).order_by("pk")
    prefetch_related_objects(rows, Prefetch("steps", steps if results else steps.defer("result", "error")))
    now = keys.values_list(Clock(), flat=True).first() or timezone.now()
    return [Facts(row, list(row.steps.all()), now) for row in rows]
