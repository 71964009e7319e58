"""The keys in each state, by the partial indexes: they are few, and found however old they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Q

from ..maintenance.lookups import BY_LEASE, IS_FAILED, database_clock
from ..models import IdempotencyKey, IdempotencyStep
from . import limits

if TYPE_CHECKING:
    from django.db.models import QuerySet

    Keys = QuerySet[IdempotencyKey]

Status, Kind = IdempotencyKey.Status, IdempotencyStep.Kind
CALLED = Q(kind=Kind.CALL, finished_at__isnull=False)
HAS_EFFECTS = Q(kind=Kind.CALL) | Q(finished_at=None)
CHUNK = 1000
"""Keys whose steps are looked up by one query."""


@dataclass(frozen=True, slots=True)
class Found:
    """Primary keys, the oldest first. `limited`: there may be more."""

    ids: list[int]
    limited: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Keys in the order of a partial index, and which of their steps make them count. None: each key counts."""

    keys: Keys
    steps: Q | None = None


def find(state: str, keys: Keys, *, among: int | None = None) -> Found:
    """Find those among `keys` that are in this state. A key can be in several states: stuck and in doubt.

    Not one query with EXISTS: for it, PostgreSQL may read all steps, also to find nothing.

    Args:
        state: a name of `BY_INDEX`.
        keys: what the person may see, and what other filters have chosen.
        among: at how many keys of an index to look. Default: 100,000.
    """
    most = among or limits.FILTERED
    found: set[int] = set()
    limited = False
    for part in BY_INDEX[state](keys):
        ids = list(part.keys.values_list("pk", flat=True)[:most])
        limited |= len(ids) == most
        found.update(ids if part.steps is None else _with_step(ids, part.steps, keys.db))
    return Found(sorted(found), limited)


def _with_step(ids: list[int], steps: Q, using: str) -> Iterable[int]:
    for start in range(0, len(ids), CHUNK):
        keys = IdempotencyStep.objects.using(using).filter(steps, key__in=ids[start : start + CHUNK])
        yield from keys.values_list("key_id", flat=True)


def _lapsed(keys: Keys) -> Keys:
    return keys.filter(locked_until__lte=database_clock(keys.db)).order_by(*BY_LEASE)


def _failed(keys: Keys) -> Keys:
    return keys.filter(IS_FAILED).order_by("created_at")


def _in_flight(keys: Keys) -> list[Part]:
    return [Part(keys.filter(locked_until__gt=database_clock(keys.db)).order_by(*BY_LEASE))]


def _in_doubt(keys: Keys) -> list[Part]:
    unfinished = IdempotencyStep.objects.using(keys.db).filter(finished_at=None)
    idle = Q(status=Status.FAILED) | Q(locked_until__lte=database_clock(keys.db))
    return [Part(keys.filter(idle, pk__in=unfinished.values("key")).order_by())]


BY_INDEX: dict[str, Callable[[Keys], list[Part]]] = {
    "attention": lambda keys: [Part(_lapsed(keys)), Part(_failed(keys), HAS_EFFECTS)],
    "in_doubt": _in_doubt,
    "half_done": lambda keys: [Part(_lapsed(keys), CALLED), Part(_failed(keys), CALLED)],
    "stuck": lambda keys: [Part(_lapsed(keys))],
    "in_flight": _in_flight,
    "failed": lambda keys: [Part(_failed(keys))],
}
