"""Which states can a key be in, what should a person do about each, and which query finds the keys in each?

A key's state can be determined from its row in the key table alone, because the row counts its own steps (see
Note [One truth about a key] in `journal.py`). A key can be in several states at once, such as "failed" and "in doubt".
In that case, only the worst one is shown; `STATES` lists the states from worst to best.

# Note [Which index finds a state]
A partial index is used only for queries that include its condition. Each index here contains only the rows in which a
certain column is set: `last_error` is set for failed keys, and `locked_until` for keys with a lease. Failed keys whose
steps took effect or are in doubt also have an `attention_at`. They are in the same index as the other failed keys, but
ahead of them. These partial indexes hold only a handful of rows, however large the table is. None of these indexes
mentions `status` or a counter. Completing an atomic key, or starting and finishing a step, can therefore be a HOT
update in PostgreSQL, which touches no index.

Claims that were committed without a lease have no partial index, because it would change at every completion. The index
on `expires_at` finds such a claim once its `ttl` has passed; few other rows are that old, because the cleanup deletes
them. Even before then, every retry is refused. See Note [A committed claim without a lease].
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db.models import DateTimeField, Func, Q
from django.utils.translation import gettext_lazy as _

from ...models import IdempotencyKey, IdempotencyStep

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Status, Kind = IdempotencyKey.Status, IdempotencyStep.Kind


CLOCKS = {
    "postgresql": ("statement_timestamp()", "statement_timestamp() + %s * interval '1 second'"),
    "mysql": ("UTC_TIMESTAMP(6)", "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL %s SECOND)"),
    # The text format in which Django stores times in SQLite. A single percent sign would begin a placeholder.
    "sqlite": (
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds')",
    ),
}
"""Each database's clock, and the same clock plus a parameter in seconds."""


class Clock(Func):
    """The database's time at the start of the statement, plus `plus` seconds.

    It is constant within a statement, so the database can use an index for comparisons with it. It depends neither on
    the start of the transaction nor on the application server's clock.
    """

    arity = 0
    output_field = DateTimeField()

    def __init__(self, *, plus: float = 0) -> None:
        super().__init__()
        self.plus = plus

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:
        now, later = CLOCKS[connection.vendor]
        return (later, [self.plus]) if self.plus else (now, [])


UNFINISHED = Q(finished_at=None)
"""A step that was started and has no result, so nobody knows whether it took effect."""
SETTLED = Q(unknown=0, effects=0)
"""A key whose steps have had no effect that a person or a retry must know about: no call has finished, and no call or
write is waiting for its result."""
DUE = Q(expires_at__lte=Clock())
FAILED = Q(status=Status.FAILED, last_error__isnull=False)
UNSETTLED = FAILED & Q(attention_at__isnull=False)
FAILED_ONLY = FAILED & Q(attention_at=None)
LIVE = Q(locked_until__isnull=False, locked_until__gt=Clock())
LAPSED = Q(status=Status.IN_PROGRESS, locked_until__isnull=False, locked_until__lte=Clock())
UNLEASED = Q(status=Status.IN_PROGRESS, locked_until=None)


@dataclass(frozen=True, slots=True)
class Seen:
    """A row of the key table, and the database's time at that moment, read for example by `.annotate(now=Clock())`."""

    row: IdempotencyKey
    now: datetime

    @property
    def live(self) -> bool:
        """Whether a worker holds an unexpired lease on the key."""
        return self.row.locked_until is not None and self.row.locked_until > self.now

    @property
    def abandoned(self) -> bool:
        """Whether the key is in progress and no worker holds a live lease on it."""
        return self.row.status == Status.IN_PROGRESS and not self.live

    @property
    def unleased(self) -> bool:
        """Whether the key is in progress without a lease, because the view ended its own transaction."""
        return self.row.status == Status.IN_PROGRESS and self.row.locked_until is None

    @property
    def idle(self) -> bool:
        """Whether a person may make a decision about the key, because it has failed or is abandoned."""
        return self.row.status == Status.FAILED or self.abandoned

    @property
    def expired(self) -> bool:
        """Whether a request with the key counts as new. A key in progress or in need of attention never expires."""
        row = self.row
        may_expire = row.status == Status.COMPLETED or (row.status == Status.FAILED and row.attention_at is None)
        return may_expire and row.expires_at <= self.now

    @property
    def state(self) -> State:
        """The key's worst state. An expired key counts as "completed" or "failed" here."""
        return next(state for state in STATES.values() if state.fits and state.fits(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state that a key can be in.

    Attributes:
        name: its name in queries, metrics and options.
        label: its human-readable name.
        to_do: what a person who finds such a key should do.
        condition: the condition that finds the keys. See Note [Which index finds a state].
        fits: a function that tells whether a row that was read is in the state; None if only a query can tell.
        order: the columns to sort by, if one index finds all the keys.
    """

    name: str
    label: _StrPromise
    to_do: _StrPromise
    condition: Q
    fits: Callable[[Seen], bool] | None = None
    order: tuple[str, ...] = ()


IN_DOUBT = State(
    name="in_doubt",
    label=_("in doubt"),
    to_do=_(
        "Nobody knows whether a step took effect, or what was committed by a view that ended its own transaction. "
        "Look it up at the called service, then record the result, or close or release the key."
    ),
    condition=((UNSETTLED | LAPSED) & Q(unknown__gt=0)) | (UNLEASED & DUE),
    fits=lambda seen: seen.unleased or (seen.idle and seen.row.unknown > 0),
)
HALF_DONE = State(
    name="half_done",
    label=_("half done"),
    to_do=_(
        "A call took effect outside, but the operation never finished. The next retry continues from there. If none "
        "comes, undo the call or finish the work, and then answer. If the value of a call was lost, enter it."
    ),
    condition=(UNSETTLED | LAPSED) & Q(unknown=0, effects__gt=0),
    fits=lambda seen: seen.idle and not seen.unleased and seen.row.unknown == 0 and seen.row.effects > 0,
)
STUCK = State(
    name="stuck",
    label=_("stuck"),
    to_do=_("Its worker is gone, and nothing was called. The next retry takes the key over, or a cleanup frees it."),
    condition=LAPSED & SETTLED,
    fits=lambda seen: seen.abandoned and not seen.unleased and seen.row.unknown == seen.row.effects == 0,
    order=("locked_until",),
)
IN_FLIGHT = State(
    name="in_flight",
    label=_("in flight"),
    to_do=_("A worker holds the key. Wait until it finishes or its lease expires."),
    condition=LIVE,
    fits=lambda seen: seen.live,
    order=("locked_until",),
)
EXPIRED = State(
    name="expired",
    label=_("expired"),
    to_do=_("The key is no longer kept. The next cleanup deletes it."),
    condition=DUE & (Q(status=Status.COMPLETED) | Q(status=Status.FAILED, attention_at=None)),
    order=("expires_at",),
)
FAILED_STATE = State(
    name="failed",
    label=_("failed"),
    to_do=_("The next retry runs at once, and continues after the stored steps."),
    condition=FAILED,
    fits=lambda seen: seen.row.status == Status.FAILED,
)
COMPLETED = State(
    name="completed",
    label=_("completed"),
    to_do=_("Retries get the stored response."),
    condition=Q(status=Status.COMPLETED),
    fits=lambda seen: seen.row.status == Status.COMPLETED,
)
STATES = {state.name: state for state in (IN_DOUBT, HALF_DONE, STUCK, IN_FLIGHT, EXPIRED, FAILED_STATE, COMPLETED)}
"""All states, from worst to best."""
ATTENTION = (IN_DOUBT, HALF_DONE, STUCK)
"""The states that need attention. A key is in at most one of them, so their counts add up."""
NEEDS_ATTENTION = UNSETTLED | LAPSED | (UNLEASED & DUE)
"""All keys that need attention: the union of the `ATTENTION` states, written so that the three indexes can be used."""
UNDECIDED = ~Q(status=Status.COMPLETED) & (Q(locked_until=None) | Q(locked_until__lte=Clock()))
"""Keys that a person may make a decision about. No index covers this condition, so a query must also filter by ids."""


def as_sql(condition: Q, alias: str) -> str:
    """Return the condition as SQL on the key table alone, with its values as literals."""
    query = IdempotencyKey.objects.using(alias).filter(condition).query
    compiler = query.get_compiler(using=alias)
    sql, params = compiler.compile(query.where)
    # The values are this module's constants. None of them comes from a client.
    literals = (str(value) if isinstance(value, int) else f"'{value}'" for value in params)
    return re.sub("%s", lambda match: next(literals), sql)
