"""The states of a key: their names, what to do, and the one place that says which keys are in them.

A key can be in several states: failed and in doubt, for example. The first state in the table that fits is the worst.
Each state has two forms. A query uses the condition, which compares with the database's clock. For a row that has been
read, a function says the same.

# Note [Which index finds a state]
Leased keys, failed keys and unfinished steps have partial indexes, which stay small. So a condition begins with what
its index holds: `locked_until IS NOT NULL`, `last_error IS NOT NULL` (every failed key has an error; a condition on
`status` would end HOT updates), `finished_at IS NULL`.

No such index holds a committed claim without a lease: every completion would have to change the index. The index on
`expires_at` finds the claim when its `ttl` is over: keys in progress never expire, so a cleanup leaves few other rows
there. Until then the key refuses each retry, see Note [A committed claim without a lease].
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
    # Text that sorts as Django's own datetimes do. The percent signs are doubled for the parameters.
    "sqlite": (
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds')",
    ),
}
"""How a database spells its clock, and the clock plus a parameter in seconds."""


class Clock(Func):
    """The database's time when it began the statement: one value for a statement, so that an index can be used.

    Neither the start of the transaction nor the application's clock. Never later than now.

    plus: so many seconds later.
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
"""Of a step: a call that has ended, so it took effect outside."""
UNFINISHED = Q(finished_at=None)
"""Of a step: it was started, has no result, and may have taken effect."""
EFFECT = Q(kind=Kind.CALL) | UNFINISHED
"""Of a step: something may have happened that a retry must know of. Reads and finished writes do not count."""


class WhenAsked(Combinable):
    """A query that is built when another query takes it in.

    A model may use the package, such as a page of Wagtail that answers requests. When its module is imported, no
    relation can be resolved yet.
    """

    conditional = True

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build

    def resolve_expression(self, *args: Any, **kwargs: Any) -> Any:
        return self.build().resolve_expression(*args, **kwargs)


def has_step(which: Q) -> WhenAsked:
    """The key has such a step."""
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
    """A row that was read, with its steps.

    now: the database's time, as `.annotate(now=Clock())` reads it with the row.
    """

    row: IdempotencyKey
    steps: Iterable[IdempotencyStep]
    now: datetime

    @property
    def live(self) -> bool:
        """A worker holds a lease that is not over."""
        return self.row.locked_until is not None and self.row.locked_until > self.now

    @property
    def abandoned(self) -> bool:
        """The key is in progress, and no worker holds it under a lease."""
        return self.row.status == Status.IN_PROGRESS and not self.live

    @property
    def unleased(self) -> bool:
        """The key is in progress without a lease: its work has ended its own transaction."""
        return self.row.status == Status.IN_PROGRESS and self.row.locked_until is None

    @property
    def idle(self) -> bool:
        """A decision about the key is possible."""
        return self.row.status == Status.FAILED or self.abandoned

    @property
    def doubts(self) -> list[IdempotencyStep]:
        """The steps that were started and have no result, unless a worker is running them now."""
        return [step for step in self.steps if step.finished_at is None] if self.idle else []

    @property
    def called(self) -> list[IdempotencyStep]:
        """The external calls that have ended."""
        return [step for step in self.steps if step.kind == Kind.CALL and step.finished_at is not None]

    @property
    def state(self) -> State:
        """The worst state of the key. That the key has expired is told by its time."""
        return next(state for state in STATES.values() if state.fits and state.fits(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One state.

    Attributes:
        name: as in the names of look-ups, metrics and options.
        label: for people.
        to_do: what a person does about such a key.
        condition: the keys that are in the state. See Note [Which index finds a state].
        fits: whether a row that was read is in the state. None: only a query can tell.
        order: of the partial index that the database should walk.
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
    fits=lambda seen: seen.idle and not seen.unleased and bool(seen.called),
)
STUCK = State(
    name="stuck",
    label=_("stuck"),
    to_do=_(
        "No worker holds the key any more. The next retry takes it over; a cleanup fails it if nothing was called."
    ),
    condition=LAPSED & ~HAS_EFFECTS,
    fits=lambda seen: seen.abandoned,
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
"""The worst first."""
ATTENTION = (IN_DOUBT, HALF_DONE, STUCK)
"""The states that need attention. A key is in one of them at most, so their counts add up."""
NEEDS_ATTENTION = LAPSED | _LISTED | (FAILED & HAS_EFFECTS)
"""The keys that are in one of the states of `ATTENTION`."""
UNDECIDED = ~Q(status=Status.COMPLETED) & (Q(locked_until=None) | Q(locked_until__lte=Clock()))
"""The keys about which a decision is possible. No index finds them: narrow them down by their ids."""


def as_sql(condition: Q, alias: str) -> str:
    """The condition as text for a statement about the key table alone, without parameters of its own."""
    query = IdempotencyKey.objects.using(alias).filter(condition).query
    compiler = query.get_compiler(using=alias)
    sql, params = compiler.compile(query.where)
    # Constants of ours: no client has written them.
    literals = (str(value) if isinstance(value, int) else f"'{value}'" for value in params)
    return re.sub("%s", lambda found: next(literals), sql)
