"""How many keys were created in each of the last 24 hours.

# Note [Sampling by primary key]
`created_at` has no index: it would cost every claim, for one chart. But primary keys are drawn in the order of time, so
keys are looked up by their number: the latest ones all, then every 8th, 16th, 32nd and so on, as many of each step. A
number that is there stands for as many keys as the step is long. One query, whatever the size of the table. No order is
relied upon, gaps (keys that were freed or cleaned up) count for nothing, and where in its step a look falls is
scattered, for databases that hand out every second or third number only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from . import limits

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models import IdempotencyKey

SHOWN = 24
BAR, GAP, HEIGHT = 15, 3, 72
"""In units of the drawing, as is all of its template."""
TOP = 16
"""Above the bars: the highest number."""
GOLDEN = 2654435769
"""2^32 by the golden ratio: its multiples fill 0 to 2^32 evenly and in no rhythm (Knuth's Fibonacci hashing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One bar. x, middle, y and height are in units of the drawing."""

    start: str
    keys: str
    x: int
    middle: int
    y: int
    height: int
    labelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """The last 24 hours by the clock on the wall, the last one of them still running."""

    starts: list[datetime]
    counts: list[int]
    estimated: bool

    @classmethod
    def of(cls, keys: QuerySet[IdempotencyKey], newest: int) -> Hours:
        """newest: the highest primary key."""
        starts = last_hours(timezone.now())
        steps = dict(sampled(newest))
        found = keys.filter(pk__in=steps, created_at__gte=starts[0]).order_by().values_list("pk", "created_at")
        counts, estimated = [0] * SHOWN, False
        for pk, created_at in found:
            counts[bisect_right(starts, created_at) - 1] += steps[pk]
            estimated |= steps[pk] > 1
        return cls(starts=starts, counts=counts, estimated=estimated)

    def bars(self) -> list[Hour]:
        highest = max(self.counts) or 1
        heights = [max(count * HEIGHT // highest, int(count > 0)) for count in self.counts]
        return [
            Hour(
                start=_clock(start),
                keys=self._said(count),
                x=number * (BAR + GAP),
                middle=number * (BAR + GAP) + BAR // 2,
                y=TOP + HEIGHT - height,
                height=height,
                labelled=number % 4 == 2,
            )
            for number, (start, count, height) in enumerate(zip(self.starts, self.counts, heights, strict=True))
        ]

    @property
    def description(self) -> str:
        """What the drawing shows, for those who do not see it."""
        highest = max(self.counts)
        if not highest:
            return _("No keys.")
        return _("In all: %(total)s. Most in one hour: %(highest)s, from %(time)s.") % {
            "total": self._said(sum(self.counts)),
            "time": _clock(self.starts[self.counts.index(highest)]),
            "highest": self._said(highest),
        }

    @property
    def highest(self) -> str:
        return self._said(max(self.counts))

    def _said(self, count: int) -> str:
        said = number_format(count, decimal_pos=0, force_grouping=True)
        return _("about %(count)s") % {"count": said} if self.estimated else said


def last_hours(now: datetime) -> list[datetime]:
    """The beginnings of the last 24 hours, by the clock of the current time zone; the last one is running."""
    local = _local(now)
    running = now - (local - local.replace(minute=0, second=0, microsecond=0))
    return [running - timedelta(hours=SHOWN - 1 - number) for number in range(SHOWN)]


def sampled(newest: int) -> Iterator[tuple[int, int]]:
    """Primary keys to look up, and how many keys each stands for. See Note [Sampling by primary key]."""
    top, step, looks = newest, 1, 8 * limits.SAMPLED
    while top > 0:
        for number in range(looks):
            pk = top - number * step - (number * GOLDEN % 2**32 * step >> 32)
            if pk > 0:
                yield pk, step
        top -= looks * step
        # As far again as everything before.
        step, looks = max(8, 2 * step), limits.SAMPLED


def _clock(start: datetime) -> str:
    return f"{_local(start):%H:%M}"


def _local(value: datetime) -> datetime:
    """Projects without time zones have naive times, which are local already."""
    return timezone.localtime(value) if timezone.is_aware(value) else value
