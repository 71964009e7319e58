"""Count the keys in each state, and find those that need attention. Each query reads a limited part of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.db.models import Count, F, Max, Min, Value
from django.db.models.functions import Abs
from django.utils.formats import number_format

from ..engine.request.callers import ANONYMOUS
from ..engine.stores.states import ATTENTION, FAILED_ONLY, LAPSED, LIVE, STATES, UNLEASED, UNSETTLED, Clock, Seen
from ..maintenance.lookups import in_other_operations
from ..models import IdempotencyKey
from .texts import badge, readable_operation

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..engine.stores import RunningTransaction

    Keys = QuerySet[IdempotencyKey]

NEEDING = tuple(state.name for state in ATTENTION)
LISTED = 2_000
"""The maximum number of keys that the list shows. Each number above the list also stops counting there. A search also
finds older keys."""
FILTERED = 100_000
"""The number of newest keys that a filter reads. Without a limit, a search for a rare value could read the whole
table."""
SAME = 10
"""The maximum number of other keys with the same request that a key's page shows."""

NEAR = 50_000
"""The number of ids before and after a key that are searched for other keys of its caller. See `same_caller`."""

HANGS = 120
"""Seconds after which an open transaction that holds keys is reported as hanging."""

FOUND = ("in_doubt", "half_done", "stuck", "in_flight", "failed")
"""The states whose keys an index can find, worst first. Keys in the other states make up most of the table."""
SCANS = (
    (UNSETTLED, "attention_at", ("in_doubt", "half_done")),
    (LAPSED, "locked_until", ("in_doubt", "half_done", "stuck")),
    (UNLEASED, "expires_at", ("in_doubt",)),
    (LIVE, "locked_until", ("in_flight",)),
    (FAILED_ONLY, "created_at", ("failed",)),
)
"""For each index: the condition of its rows, its column, and the states that are found in it.

A row's state is determined in Python, because a query with a condition on `unknown` and `effects` would read on until
it had found enough rows.
"""


def find(state: str, keys: Keys) -> list[int]:
    """Return the ids of the keys in a state, oldest first.

    Args:
        state: a name in `FOUND`, or "attention" for all states that need attention.
        keys: the keys that the person may see and that match the other filters. At most 100,000 keys from each index
            are read.
    """
    states = NEEDING if state == "attention" else (state,)
    pks: list[int] = []
    for name, ids, _ in _in_states(keys, FILTERED):
        pks += ids if name in states else []
        if name == states[-1]:  # the remaining states aren't needed
            break
    return sorted(pks)


def _in_states(keys: Keys, most: int) -> Iterator[tuple[str, list[int], bool]]:
    """Yield each state with the ids of its keys, and whether a query has reached its limit of `most` rows.

    A key in several states is listed under the worst of them.
    """
    ids: dict[str, set[int]] = {name: set() for name in FOUND}
    limited: set[str] = set()
    needed = ("pk", "status", "locked_until", "unknown", "effects", "now")
    for condition, column, names in SCANS:
        # A cleanup doesn't delete claims without a lease, so they are among the keys that expired first. Looking any
        # further would mean reading all the keys that are waiting for the next cleanup.
        chosen = keys.filter(pk__in=_first_due(keys.db)) if column == "expires_at" else keys
        rows = chosen.filter(condition).annotate(now=Clock()).order_by(column).values_list(*needed, named=True)[:most]
        for row in rows:
            if (name := Seen(row, row.now).state.name) in names:
                ids[name].add(row.pk)
        if len(rows) == most:
            limited.update(names)
    for name in FOUND:
        yield name, sorted(ids[name]), name in limited


def _first_due(using: str) -> list[int]:
    due = IdempotencyKey.objects.using(using).filter(expires_at__lte=Clock()).order_by("expires_at")
    return list(due.values_list("pk", flat=True)[:LISTED])


def latest(keys: Keys, count: int) -> Keys:
    """Keep only the latest keys: those whose id is within `count` of the table's highest."""
    newest = IdempotencyKey.objects.using(keys.db).aggregate(newest=Max("pk"))["newest"] or 0
    return keys.filter(pk__gt=newest - count)


def same_request(keys: Keys, row: IdempotencyKey) -> list[IdempotencyKey]:
    """Other keys with the same resource and the same fingerprint.

    A client that sends one request twice, under two keys, may have charged the customer twice.
    """
    if row.resource_id is None or row.fingerprint is None:
        return []
    about = keys.filter(resource_id=row.resource_id, resource_type=row.resource_type, fingerprint=row.fingerprint)
    return list(about.exclude(pk=row.pk).order_by("pk")[:SAME])


def same_caller(keys: Keys, row: IdempotencyKey, near: int = NEAR) -> list[IdempotencyKey]:
    """Other keys of this caller with the same fingerprint, nearest first.

    A client that retries with a new key usually does so soon, so only rows with ids near this one are read. Callers
    without credentials are left out: they all share one scope, so two identical requests in that scope prove nothing.
    """
    if row.fingerprint is None or row.scope == ANONYMOUS:
        return []
    around = keys.filter(pk__range=(row.pk - near, row.pk + near), scope=row.scope, fingerprint=row.fingerprint)
    return list(around.exclude(pk=row.pk).order_by(Abs(F("pk") - Value(row.pk)))[:SAME])


def same_key(keys: Keys, row: IdempotencyKey) -> list[IdempotencyKey]:
    """The rows of this caller's key under other operations, such as the route's old name.

    The unique index finds all callers' rows for this key; only the first `LISTED` rows are read.
    """
    return [other for _, other in islice(in_other_operations([row], keys, at_most=LISTED), SAME)]


@dataclass(frozen=True, slots=True)
class Number:
    """The number of keys that are in a given state or need attention.

    Attributes:
        limited: whether the count stopped at its limit, so that there may be more.
        operations: for a state that needs attention, each operation with its number of keys and its oldest key.
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
    """For each state, count the keys that this user may see, using about twelve queries in total."""
    return [
        Number(name, len(ids), limited, _by_operation(keys, ids) if name in NEEDING else [])
        for name, ids, limited in _in_states(keys, LISTED)
    ]


def hanging(running: Iterable[RunningTransaction]) -> int:
    """Count the open transactions that have held keys for too long."""
    return sum((one.seconds or 0) >= HANGS for one in running)


def attention(numbers: list[Number]) -> Number:
    """Add up the numbers for the states that need attention."""
    needing = [number for number in numbers if number.state in NEEDING]
    return Number("attention", sum(one.count for one in needing), any(one.limited for one in needing))


def _by_operation(keys: Keys, ids: list[int]) -> list[dict[str, Any]]:
    counted = keys.filter(pk__in=ids).order_by().values("operation") if ids else keys.none().values("operation")
    numbers = counted.annotate(count=Count("pk"), oldest=Min("pk"), since=Min("created_at")).order_by("since")
    return [{**number, "name": readable_operation(number["operation"])} for number in numbers]
