"""What stands above the list: the keys that need attention, and numbers. Each looks at a bounded part of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Max, Q
from django.utils.formats import number_format

from ..engine.conf import get_settings
from ..engine.stores.states import ATTENTION, CALLED, EFFECT, FAILED, LAPSED, LIVE, UNFINISHED, UNLEASED, Clock
from ..maintenance.facts import CHUNK
from ..models import IdempotencyKey, IdempotencyStep
from .texts import badge

if TYPE_CHECKING:
    from django.db.models import QuerySet

    Keys = QuerySet[IdempotencyKey]

LISTED = 2_000
"""How many keys the list pages through, and a number counts. An older key is found by the search."""
FILTERED = 100_000
"""How many of the latest keys a filter looks at. For a rare value, it would otherwise read the whole table."""
FIRST = 5
"""How many of the keys that need attention stand above the list: the oldest."""


@dataclass(frozen=True, slots=True)
class Part:
    """Keys in the order of an index, and which of their steps make them count. None: each key counts."""

    condition: Q
    order: str | None
    steps: Q | None = None


_LAPSED = Part(LAPSED, "locked_until")
_UNLEASED = Part(UNLEASED, "expires_at")
_UNFINISHED = Q(pk__in=IdempotencyStep.objects.filter(UNFINISHED).values("key"))
BY_INDEX: dict[str, tuple[Part, ...]] = {
    "attention": (_LAPSED, _UNLEASED, Part(FAILED, "created_at", EFFECT)),
    "in_doubt": (Part((FAILED | LAPSED) & _UNFINISHED, None), _UNLEASED),
    "half_done": (Part(LAPSED, "locked_until", CALLED), Part(FAILED, "created_at", CALLED)),
    "stuck": (_LAPSED, _UNLEASED),
    "in_flight": (Part(LIVE, "locked_until"),),
    "failed": (Part(FAILED, "created_at"),),
}
"""The states that an index finds, and `attention`. Not one query with EXISTS as in `states.STATES`: for that,
PostgreSQL may read all steps, also to find nothing."""


def find(state: str, keys: Keys, *, among: int | None = None) -> tuple[list[int], bool]:
    """Return those among `keys` that are in this state, the oldest first, and whether there may be more.

    Args:
        state: a name of `BY_INDEX`.
        keys: what the person may see, and what other filters have chosen.
        among: at how many keys of an index to look. Default: 100,000.
    """
    most = among or FILTERED
    found: set[int] = set()
    limited = False
    for part in BY_INDEX[state]:
        # A key without a lease never expires: where cleanups run, it is among the first in the index of `expires_at`.
        chosen = keys.filter(pk__in=_first_due(keys.db)) if part is _UNLEASED else keys
        ordered = chosen.filter(part.condition).order_by(*([part.order] if part.order else []))
        ids = list(ordered.values_list("pk", flat=True)[:most])
        limited |= len(ids) == most
        if part.steps is None:
            found.update(ids)
        else:
            for start in range(0, len(ids), CHUNK):
                steps = IdempotencyStep.objects.using(keys.db).filter(part.steps, key__in=ids[start : start + CHUNK])
                found.update(steps.values_list("key_id", flat=True))
    return sorted(found), limited


def _first_due(using: str) -> list[int]:
    due = IdempotencyKey.objects.using(using).filter(expires_at__lte=Clock()).order_by("expires_at")
    return list(due.values_list("pk", flat=True)[:LISTED])


def latest(keys: Keys, count: int) -> Keys:
    """Return those of the latest keys of the table that are among `keys`: a range of the primary key."""
    newest = IdempotencyKey.objects.using(keys.db).aggregate(newest=Max("pk"))["newest"] or 0
    return keys.filter(pk__gt=newest - count)


@dataclass(frozen=True, slots=True)
class Number:
    """How many keys are in a state. `limited`: there may be more."""

    state: str
    count: int
    limited: bool

    @property
    def label(self) -> str:
        return badge(self.state)

    def __str__(self) -> str:
        return number_format(self.count, decimal_pos=0, force_grouping=True) + ("+" if self.limited else "")


@dataclass(frozen=True, slots=True)
class Overview:
    """What a person on call wants to know first.

    Attributes:
        oldest: the keys that have needed attention for the longest time.
        numbers: how many keys are in each state that an index finds.
        runbook: the address of the project's own runbook.
    """

    oldest: list[IdempotencyKey]
    numbers: list[Number]
    runbook: str | None


def overview(keys: Keys) -> Overview:
    """Of the keys that this person may see, in about a dozen queries."""
    ids, _limited = find("attention", keys, among=LISTED)
    numbers = []
    for state in (*(state.name for state in ATTENTION), "failed", "in_flight"):
        found, limited = find(state, keys, among=LISTED)
        numbers.append(Number(state, len(found), limited))
    oldest = list(keys.filter(pk__in=ids[:FIRST]).order_by("pk")) if ids else []
    return Overview(oldest, numbers, get_settings().runbook_url)
