"""What stands above the list: the keys that need attention, and numbers. Each looks at a bounded part of the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db.models import Count, Max, Min, Q
from django.utils.formats import number_format

from ..engine.stores.states import ATTENTION, CALLED, FAILED, LAPSED, LIVE, STATES, UNFINISHED, UNLEASED, Clock
from ..models import IdempotencyKey, IdempotencyStep
from .texts import badge, readable_operation

if TYPE_CHECKING:
    from django.db.models import QuerySet

    Keys = QuerySet[IdempotencyKey]

NEEDING = tuple(state.name for state in ATTENTION)
LISTED = 2_000
"""How many keys the list pages through, and a number counts. An older key is found by the search."""
FILTERED = 100_000
"""How many of the latest keys a filter looks at. For a rare value, it would otherwise read the whole table."""
SAME = 10
"""How many other keys with the same request the page of a key names."""
CHUNK = 1000
"""Keys whose steps are read at once. A database takes some thousands of parameters in a statement."""


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
    "in_flight": (Part(LIVE, "locked_until"),),
    "in_doubt": (Part((FAILED | LAPSED) & _UNFINISHED, None), _UNLEASED),
    "half_done": (Part(LAPSED, "locked_until", CALLED), Part(FAILED, "created_at", CALLED)),
    "stuck": (_LAPSED, _UNLEASED),
    "failed": (Part(FAILED, "created_at"),),
}
"""The states that an index finds. Not one query with EXISTS as in `states.STATES`: for that, PostgreSQL may read all
steps, also to find nothing."""


def find(state: str, keys: Keys) -> tuple[list[int], bool]:
    """Return those among `keys` that have this badge, the oldest first, and whether there may be more.

    Args:
        state: a name of `BY_INDEX`, or "attention" for all states that need it.
        keys: what the person may see, and what other filters have chosen. 100,000 keys of each index are looked at.
    """
    wanted = NEEDING if state == "attention" else (state,)
    found: list[int] = []
    limited = False
    for name, ids, more in _in_states(keys, FILTERED):
        if name in wanted:
            found, limited = found + ids, limited or more
        if name == wanted[-1]:
            break
    return sorted(found), limited


def _in_states(keys: Keys, most: int) -> Iterator[tuple[str, list[int], bool]]:
    """The keys in each state. A key that is in several states counts under the worst."""
    worse: set[int] = set()
    for name, parts in BY_INDEX.items():
        found: set[int] = set()
        limited = False
        for part in parts:
            # A key without a lease never expires: where cleanups run, it is among the first in the index.
            chosen = keys.filter(pk__in=_first_due(keys.db)) if part is _UNLEASED else keys
            ordered = chosen.filter(part.condition).order_by(*([part.order] if part.order else []))
            ids = list(ordered.values_list("pk", flat=True)[:most])
            limited |= len(ids) == most
            found.update(ids if part.steps is None else _with_steps(keys.db, ids, part.steps))
        yield name, sorted(found - worse), limited
        worse |= found


def _with_steps(using: str, ids: list[int], steps: Q) -> set[int]:
    found: set[int] = set()
    for start in range(0, len(ids), CHUNK):
        of_some = IdempotencyStep.objects.using(using).filter(steps, key__in=ids[start : start + CHUNK])
        found.update(of_some.values_list("key_id", flat=True))
    return found


def _first_due(using: str) -> list[int]:
    due = IdempotencyKey.objects.using(using).filter(expires_at__lte=Clock()).order_by("expires_at")
    return list(due.values_list("pk", flat=True)[:LISTED])


def latest(keys: Keys, count: int) -> Keys:
    """Return those of the latest keys of the table that are among `keys`: a range of the primary key."""
    newest = IdempotencyKey.objects.using(keys.db).aggregate(newest=Max("pk"))["newest"] or 0
    return keys.filter(pk__gt=newest - count)


def same_request(keys: Keys, row: IdempotencyKey) -> list[IdempotencyKey]:
    """Return the first of the other keys with the same request about the same resource: perhaps a second charge."""
    if row.resource_id is None or row.fingerprint is None:
        return []
    about = keys.filter(resource_id=row.resource_id, resource_type=row.resource_type, fingerprint=row.fingerprint)
    return list(about.exclude(pk=row.pk).order_by("pk")[:SAME])


@dataclass(frozen=True, slots=True)
class Number:
    """How many keys are in a state, or need attention. `limited`: there may be more.

    operations: of a state that needs attention, the number of its keys under each operation, and the oldest of them.
    """

    state: str
    count: int
    limited: bool
    operations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def badge(self) -> str:
        return badge(self.state)

    @property
    def to_do(self) -> Any:
        return STATES[self.state].to_do

    def __str__(self) -> str:
        return number_format(self.count, decimal_pos=0, force_grouping=True) + ("+" if self.limited else "")


def overview(keys: Keys) -> list[Number]:
    """The numbers of the keys that this person may see, in about a dozen queries."""
    return [
        Number(name, len(ids), limited, _by_operation(keys, ids) if name in NEEDING else [])
        for name, ids, limited in _in_states(keys, LISTED)
    ]


def attention(numbers: list[Number]) -> Number:
    """How many keys need attention."""
    needing = [number for number in numbers if number.state in NEEDING]
    return Number("attention", sum(one.count for one in needing), any(one.limited for one in needing))


def _by_operation(keys: Keys, ids: list[int]) -> list[dict[str, Any]]:
    counted = keys.filter(pk__in=ids).order_by().values("operation") if ids else keys.none().values("operation")
    numbers = counted.annotate(count=Count("pk"), oldest=Min("pk"), since=Min("created_at")).order_by("since")
    return [{**number, "name": readable_operation(number["operation"])} for number in numbers]
