"""This module defines the states of a key. Each state has a name, advice for people, and a rule that tells which keys
have this state.

A key can have several states at once, for example "failed" and "in doubt". The dict `STATES` begins with the worst
state. If a key has several states, the worst of these states is shown. The rule of a state has two forms: a condition
for a query, and a Python function. The condition uses the database's clock. The Python function checks a row that the
package has already read.

# Note [Which index finds a state]
There are small partial indexes for leased keys, for failed keys and for unfinished steps. The conditions of these
partial indexes are `locked_until IS NOT NULL`, `last_error IS NOT NULL` and `finished_at IS NULL`. A database uses a
partial index if the query contains the condition of the index. So a query for all keys in one state begins with the
condition of a partial index. Every failed key has an error, so a condition on `last_error` finds all failed keys. On
PostgreSQL, no index has a condition on `status`. If an index had a condition on `status`, PostgreSQL could not use a
HOT update when a key is completed. A HOT update is fast, because this UPDATE changes no index.

The table needs no partial index for committed claims without a lease. Such an index would have to be changed at every
completion. One query finds the committed claims that have no lease. This query uses the index on `expires_at`. So the
query finds a claim only after the claim's `ttl` is over. This query reads few rows, because a cleanup deletes most rows
whose `ttl` is over. If a claim is committed and has no lease, the package refuses every retry. Sometimes a retry comes
so early that this query does not find the claim yet. The package refuses such a retry, too. See Note [A committed claim
without a lease].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db.models import DateTimeField, Exists, Func, OuterRef, Q
from django.db.models.expressions import Combinable
from django.utils.translation import gettext_lazy as _

from ...models import IdempotencyKey, IdempotencyStep

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Status, Kind = IdempotencyKey.Status, IdempotencyStep.Kind


CLOCKS = {
    "postgresql": ("statement_timestamp()", "statement_timestamp() + %s * interval '1 second'"),
    "mysql": ("UTC_TIMESTAMP(6)", "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL %s SECOND)"),
    # In SQLite, Django stores times as texts. This SQL writes the present time in Django's text format, so that SQLite
    # can compare the present time with a stored time. Each percent sign is written twice, because one percent sign
    # begins a placeholder.
    "sqlite": (
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds')",
    ),
}
"""SQL of each database for its clock, and for its clock plus a parameter in seconds."""


class Clock(Func):
    """This expression is the database's time at the start of the statement.

    The value of `Clock` does not change during a statement. So the database can use an index when it compares a column
    with `Clock`. `Clock` uses neither the start time of the transaction nor the clock of the application server.

    The argument `plus` is a number of seconds, which the database adds to its time.
    """

    arity = 0
    output_field = DateTimeField()

    def __init__(self, *, plus: float = 0) -> None:
        super().__init__()
        self.plus = plus

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:
        now, later = CLOCKS[connection.vendor]
        return (later, [self.plus]) if self.plus else (now, [])


CALLED = Q(kind=Kind.CALL, finished_at__isnull=False)
"""The condition for a step that is a finished call, so the call took effect outside."""
UNFINISHED = Q(finished_at=None)
"""The condition for a step that was started and has no result. It is not known whether the step took effect."""
EFFECT = Q(kind=Kind.CALL) | UNFINISHED
"""The condition for a call, or for a step without a result. A retry must know of these, but not of other finished
steps.
"""


class WhenAsked(Combinable):
    """A `WhenAsked` object is a part of a query. The object calls its function `build` only when a query uses the
    object.

    Some projects import this package in their `models.py`. For example, a Wagtail page is a model that answers
    requests. While Django imports models, Django cannot resolve the relations between models yet.
    """

    conditional = True

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build

    def resolve_expression(self, *args: Any, **kwargs: Any) -> Any:
        return self.build().resolve_expression(*args, **kwargs)


def has_step(which: Q) -> WhenAsked:
    """Return a query condition that selects keys. The condition is true for a key if at least one step of the key
    matches the argument `which`.
    """
    return WhenAsked(lambda: Exists(IdempotencyStep.objects.filter(which, key=OuterRef("pk"))))


_DUE = Q(expires_at__lte=Clock())
FAILED = Q(status=Status.FAILED, last_error__isnull=False)
LIVE = Q(locked_until__isnull=False, locked_until__gt=Clock())
LAPSED = Q(status=Status.IN_PROGRESS, locked_until__isnull=False, locked_until__lte=Clock())
UNLEASED = Q(status=Status.IN_PROGRESS, locked_until=None)
_LISTED = UNLEASED & _DUE
HAS_EFFECTS = has_step(EFFECT)
_IDLE = FAILED | LAPSED


@dataclass(frozen=True, slots=True)
class Seen:
    """A `Seen` object has one row of the key table, and the steps of this key.

    The attribute `now` is the time at which the database has read the row. For example, the query gets this time with
    `.annotate(now=Clock())`.
    """

    row: IdempotencyKey
    steps: Iterable[IdempotencyStep]
    now: datetime

    @property
    def live(self) -> bool:
        """Return True if a worker has a lease on this key, and the lease is not over."""
        return self.row.locked_until is not None and self.row.locked_until > self.now

    @property
    def abandoned(self) -> bool:
        """Return True if the key is in progress, and no worker has a live lease on the key."""
        return self.row.status == Status.IN_PROGRESS and not self.live

    @property
    def unleased(self) -> bool:
        """Return True if the key is in progress and has no lease. Then the view has ended the transaction in which it
        ran.
        """
        return self.row.status == Status.IN_PROGRESS and self.row.locked_until is None

    @property
    def idle(self) -> bool:
        """Return True if the key has failed or is abandoned. Then a person may decide about the key."""
        return self.row.status == Status.FAILED or self.abandoned

    @property
    def doubts(self) -> list[IdempotencyStep]:
        """Return the steps that were started and have no result. If a worker has a live lease, return no steps."""
        return [step for step in self.steps if step.finished_at is None] if self.idle else []

    @property
    def called(self) -> list[IdempotencyStep]:
        """Return the finished external calls of this key."""
        return [step for step in self.steps if step.kind == Kind.CALL and step.finished_at is not None]

    @property
    def state(self) -> State:
        """A key can be in several states at the same time. Return the worst of these states, but never "expired".

        To see that a key has expired, you must query the column `expires_at`.
        """
        return next(state for state in STATES.values() if state.fits and state.fits(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """This class describes a state that a key can have.

    Attributes:
        name: the name of the state in queries, metrics and options.
        label: the name of the state that people read.
        to_do: the advice for a person who finds a key with this state.
        condition: finds the keys that have the state. See Note [Which index finds a state].
        fits: tells whether a row that was read has the state. It is None if only a query can tell.
        order: the columns by which a query sorts, so that the database uses the partial index.
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
        "It is unknown whether a step took effect, or what a view has committed that ended its own transaction. Look "
        "in the books of the other side, then record the result, answer, or release the key."
    ),
    condition=(_IDLE & Q(pk__in=WhenAsked(lambda: IdempotencyStep.objects.filter(UNFINISHED).values("key")))) | _LISTED,
    fits=lambda seen: bool(seen.doubts) or seen.unleased,
)
HALF_DONE = State(
    name="half_done",
    label=_("half done"),
    to_do=_(
        "A call took effect outside, and the operation did not end. The next retry goes on from there. If none comes, "
        "undo the call there and answer, or finish the work and answer."
    ),
    condition=_IDLE & Q(has_step(CALLED)) & ~Q(has_step(UNFINISHED)),
    fits=lambda seen: seen.idle and not (seen.unleased or seen.doubts) and bool(seen.called),
)
STUCK = State(
    name="stuck",
    label=_("stuck"),
    to_do=_(
        "No worker holds the key any more, and nothing was called. The next retry takes the key over, or a cleanup "
        "frees the key."
    ),
    condition=LAPSED & Q(~HAS_EFFECTS),
    fits=lambda seen: seen.abandoned and not (seen.unleased or seen.doubts or seen.called),
    order=("locked_until",),
)
IN_FLIGHT = State(
    name="in_flight",
    label=_("in flight"),
    to_do=_("A worker holds the key. Wait for the end of its lease."),
    condition=LIVE,
    fits=lambda seen: seen.live,
    order=("locked_until",),
)
EXPIRED = State(
    name="expired",
    label=_("expired"),
    to_do=_("The time to keep the key is over. The next cleanup deletes the key."),
    condition=_DUE & (Q(status=Status.COMPLETED) | (Q(status=Status.FAILED) & Q(~HAS_EFFECTS))),
    order=("expires_at",),
)
FAILED_STATE = State(
    name="failed",
    label=_("failed"),
    to_do=_("The next retry runs at once, and goes on from the steps that are kept."),
    condition=FAILED,
    fits=lambda seen: seen.row.status == Status.FAILED,
    order=("created_at",),
)
COMPLETED = State(
    name="completed",
    label=_("completed"),
    to_do=_("Retries get the stored answer."),
    condition=Q(status=Status.COMPLETED),
    fits=lambda seen: seen.row.status == Status.COMPLETED,
)
STATES = {state.name: state for state in (IN_DOUBT, HALF_DONE, STUCK, IN_FLIGHT, EXPIRED, FAILED_STATE, COMPLETED)}
"""All states, the worst state first."""
ATTENTION = (IN_DOUBT, HALF_DONE, STUCK)
"""The states that need attention. A key is in at most one of them, so the sum of their numbers is correct."""
NEEDS_ATTENTION = LAPSED | _LISTED | (FAILED & HAS_EFFECTS)
"""The condition for all keys that need attention."""
UNDECIDED = ~Q(status=Status.COMPLETED) & (Q(locked_until=None) | Q(locked_until__lte=Clock()))
"""The condition for keys that a person may decide about. It has no index, so a query must also filter by ids."""


def as_sql(condition: Q, alias: str) -> str:
    """Return the condition as SQL, for a statement that uses the key table and no other table.

    The returned SQL contains all values, and has no placeholders.
    """
    query = IdempotencyKey.objects.using(alias).filter(condition).query
    compiler = query.get_compiler(using=alias)
    sql, params = compiler.compile(query.where)
    # All values in this SQL are constants of this module, so no value comes from a client.
    literals = (str(value) if isinstance(value, int) else f"'{value}'" for value in params)
    return re.sub("%s", lambda found: next(literals), sql)
