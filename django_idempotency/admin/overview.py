"""What stands above the list: the keys that need attention, and numbers. Each looks at a bounded part of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Count
from django.utils.formats import number_format
from django.utils.timesince import timesince
from django.utils.translation import gettext as _

from ..engine.conf import get_settings
from ..maintenance.lookups import unleased
from ..models import IdempotencyKey
from . import limits
from .attention import find
from .badges import ATTENTION, badge, mark
from .filters import latest
from .story import to_do
from .texts import readable_operation

if TYPE_CHECKING:
    from django.db.models import QuerySet

    Keys = QuerySet[IdempotencyKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number, and the list of the keys that it counts. `limited`: there may be more."""

    label: str
    query: str
    count: int
    limited: bool = False
    note: str = ""

    def __str__(self) -> str:
        return grouped(self.count) + ("+" if self.limited else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A key that needs attention, and what to do."""

    row: IdempotencyKey
    state: str
    to_do: str

    @property
    def route(self) -> str:
        return readable_operation(self.row.operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a person on call wants to know first.

    Attributes:
        oldest: the keys that have needed attention for the longest time.
        numbers: how many keys are in each state.
        runbook: the address of the project's own runbook.
    """

    oldest: list[Waiting]
    numbers: list[Number]
    runbook: str | None


def overview(keys: Keys) -> Overview:
    """Of the keys that this person may see, in about a dozen queries."""
    return Overview(
        oldest=_oldest(keys),
        numbers=[*(_number(keys, name) for name in (*ATTENTION, "failed", "in_flight")), _completed(keys)],
        runbook=get_settings().runbook_url,
    )


def grouped(value: int) -> str:
    return number_format(value, decimal_pos=0, force_grouping=True)


def _oldest(keys: Keys) -> list[Waiting]:
    ids = find("attention", keys, among=limits.LISTED).ids[: limits.FIRST]
    if not ids:
        return []
    rows = list(keys.filter(pk__in=ids).order_by("pk"))
    mark(rows, keys.db)
    without_lease = set(keys.filter(unleased(keys.db), pk__in=ids).values_list("pk", flat=True))
    states: list[tuple[Any, str]] = [(row, row.worst_state) for row in rows]  # type: ignore[attr-defined]
    return [
        Waiting(row=row, state=badge(state), to_do=to_do(state, unleased=row.pk in without_lease))
        for row, state in states
    ]


def _number(keys: Keys, state: str) -> Number:
    found = find(state, keys, among=limits.LISTED)
    note = _age_of_oldest(keys, found.ids) if state == "in_flight" else ""
    return Number(label=badge(state), query=f"?state={state}", count=len(found.ids), limited=found.limited, note=note)


def _age_of_oldest(keys: Keys, ids: list[int]) -> str:
    oldest = keys.filter(pk__in=ids[:1]).values_list("created_at", flat=True).first()
    return _("oldest: %(age)s") % {"age": timesince(oldest)} if oldest else ""


def _completed(keys: Keys) -> Number:
    found = latest(keys, limits.FILTERED).order_by()
    counts: dict[str, int] = dict(found.values_list("status").annotate(Count("pk")))
    note = _("of the latest %(count)s keys") % {"count": grouped(sum(counts.values()))}
    status = IdempotencyKey.Status.COMPLETED.value
    return Number(label=badge(status), query=f"?state={status}", count=counts.get(status, 0), note=note)
