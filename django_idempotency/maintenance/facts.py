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
    """A `Facts` object has the row of a key, and the steps of the key in the order of their first start."""

    @cached_property
    def in_doubt(self) -> list[str]:
        """Return the names of the steps that were started and have no result.

        If a worker has the key now, no step is in doubt, so the list is empty.
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
        """Return the names of the steps whose result a person can record. A result can be recorded for a step in doubt,
        and for a step whose result a person has recorded before.
        """
        recorded = correctable(self.row)
        return [*self.in_doubt, *(name for name in self.finished if name in recorded)]

    def needs_word(self, action: str) -> bool:
        """Return whether this action needs a confirmation. Before the confirmation, a person must find out what the
        earlier attempts have done.

        After the action "release", the next retry repeats each call that is in doubt. If a call is in doubt, a release
        needs a confirmation, but not with the policy "retry". If a write is in doubt, a release always needs a
        confirmation, because the policy decides only about calls. If a key is in progress without a lease, a release
        needs a confirmation, because the work has already committed writes.

        The action "answer" needs a confirmation if the key has a finished call or a step in doubt. An answer for a key
        in progress without a lease also needs a confirmation. After an answer, the key no longer needs attention. So
        people could forget that a customer has paid, but the order does not exist.
        """
        if action == "release":
            on_hold = bool(self.in_doubt) and self.row.policy != IdempotencyKey.Policy.RETRY
            return on_hold or self.write_in_doubt or self.unleased
        return action == "answer" and self.state in (IN_DOUBT, HALF_DONE)


def facts_of(rows: Iterable[IdempotencyKey], *, results: bool = False) -> list[Facts]:
    """Return the `Facts` of these rows, in the order of the rows. All rows must be in the same database.

    For any number of rows, the function runs only two queries. But if `results` is False and all keys are completed,
    the function does not run a query.

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
