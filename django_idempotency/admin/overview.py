"""The numbers above the list. Each comes from a bounded part of the table, and says so where that shows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db.models import Count, Max, Min
from django.utils.formats import number_format
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.stores import store_for
from ..models import IdempotencyKey
from . import limits
from .badges import badge
from .hours import Hours

if TYPE_CHECKING:
    from django.db.models import QuerySet


COUNTED = {
    "replayed": gettext_lazy("replays"),
    "conflicted": gettext_lazy("duplicates of a running request"),
    "mismatched": gettext_lazy("keys that were used for another request"),
}


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
    """What somebody on call wants to know first."""

    now: list[Number]
    latest: int
    by_status: list[Number]
    counted: list[tuple[Any, str]]
    hours: Hours

    @property
    def latest_title(self) -> str:
        return _("Latest %(count)s keys by status") % {"count": grouped(self.latest)}


def overview(keys: QuerySet[IdempotencyKey]) -> Overview:
    """Of the keys that this person may see, in at most nine queries."""
    newest = IdempotencyKey.objects.using(keys.db).aggregate(newest=Max("pk"))["newest"] or 0
    by_status = _by_status(keys, newest)
    return Overview(
        now=[_in_flight(keys), *_attention(keys)],
        latest=sum(number.count for number in by_status),
        by_status=by_status,
        counted=_counted(),
        hours=Hours.of(keys, newest),
    )


def _counted() -> list[tuple[Any, str]]:
    """What this process has counted, word and number; nothing where the project has not installed the metrics."""
    metrics = sys.modules.get("django_idempotency.metrics")
    totals = metrics.totals() if metrics else {}
    return [(word, grouped(totals.get(outcome, 0))) for outcome, word in COUNTED.items()] if totals else []


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
    ids = store_for(keys.db).live_ids(limits.LISTED)
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
    store = store_for(keys.db)
    found = {"stuck": store.stuck_ids(limits.LISTED), "in_doubt": store.in_doubt_ids(limits.LISTED)}
    return [
        Number(
            label=badge(name),
            query=f"?attention={name}",
            count=keys.filter(pk__in=ids).count(),
            limited=len(ids) == limits.LISTED,
        )
        for name, ids in found.items()
    ]
