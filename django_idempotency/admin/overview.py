"""The numbers above the list. Each is counted in a bounded part of the table, and says so where that matters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db.models import Count, Max, Min
from django.utils.formats import number_format
from django.utils.timesince import timesince
from django.utils.translation import gettext as _

from ..models import IdempotencyKey
from . import limits
from .badges import attention_ids, badge

if TYPE_CHECKING:
    from django.db.models import QuerySet


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
class Overview:
    """What a person on call wants to know first."""

    now: list[Number]
    latest: int
    by_status: list[Number]

    @property
    def latest_title(self) -> str:
        return _("Latest %(count)s keys by status") % {"count": grouped(self.latest)}


def overview(keys: QuerySet[IdempotencyKey]) -> Overview:
    """Of the keys that this person may see, in at most eight queries."""
    newest = IdempotencyKey.objects.using(keys.db).aggregate(newest=Max("pk"))["newest"] or 0
    by_status = _by_status(keys, newest)
    return Overview(
        now=[_in_flight(keys), *_attention(keys)],
        latest=sum(number.count for number in by_status),
        by_status=by_status,
    )


def grouped(value: int) -> str:
    return number_format(value, decimal_pos=0, force_grouping=True)


def _by_status(keys: QuerySet[IdempotencyKey], newest: int) -> list[Number]:
    latest = keys.filter(pk__gt=newest - limits.FILTERED).order_by()
    counts: dict[str, int] = dict(latest.values_list("status").annotate(Count("pk")))
    return [
        Number(label=badge(status.value), query=f"?status={status.value}", count=counts.get(status.value, 0))
        for status in IdempotencyKey.Status
    ]


def _in_flight(keys: QuerySet[IdempotencyKey]) -> Number:
    ids = attention_ids("in_flight", keys.db)
    found: dict[str, Any] = keys.filter(pk__in=ids).aggregate(count=Count("pk"), oldest=Min("created_at"))
    oldest: datetime | None = found["oldest"]
    return Number(
        label=badge("in_flight"),
        query="?attention=in_flight",
        count=found["count"],
        limited=len(ids) == limits.LISTED,
        note=_("oldest: %(age)s") % {"age": timesince(oldest)} if oldest else "",
    )


def _attention(keys: QuerySet[IdempotencyKey]) -> list[Number]:
    found = {name: attention_ids(name, keys.db) for name in ("stuck", "in_doubt")}
    return [
        Number(
            label=badge(name),
            query=f"?attention={name}",
            count=keys.filter(pk__in=ids).count(),
            limited=len(ids) == limits.LISTED,
        )
        for name, ids in found.items()
    ]
