"""What is known about one key: read once for its page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.utils.translation import gettext as _

from ..engine.conf import get_settings
from ..maintenance.lookups import in_flight, unleased
from ..models import IdempotencyKey, IdempotencyStep
from .badges import ATTENTION, worst
from .texts import moment

Status, Kind = IdempotencyKey.Status, IdempotencyStep.Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A key and its steps.

    Attributes:
        row: the key.
        steps: in the order in which they were first started.
        live: whether a worker holds a lease that has not expired by the database's clock.
        unleased: whether the key is in progress without a lease, and its work has committed a part.
    """

    row: IdempotencyKey
    steps: list[IdempotencyStep]
    live: bool
    unleased: bool

    @property
    def state(self) -> str:
        return worst(self.row, live=self.live, in_doubt=bool(self.doubts), called=bool(self.called))

    @property
    def needs_attention(self) -> bool:
        return self.state in ATTENTION

    @property
    def doubts(self) -> list[str]:
        """Names of the steps that were started and have no result, unless a worker is running them now."""
        return [step.name for step in self.steps if step.finished_at is None] if self._is_idle else []

    @property
    def called(self) -> list[str]:
        """Names of the external calls that have ended."""
        return [step.name for step in self.steps if step.finished_at and step.kind == Kind.CALL]

    @property
    def finished(self) -> list[str]:
        """Names of the steps that have ended."""
        return [step.name for step in self.steps if step.finished_at]

    @property
    def write_in_doubt(self) -> bool:
        return self._is_idle and any(step.finished_at is None and step.kind == Kind.WRITE for step in self.steps)

    @property
    def resolvable(self) -> bool:
        return self._is_idle

    @property
    def _is_idle(self) -> bool:
        return self.row.status != Status.COMPLETED and not self.live


def facts_of(obj: IdempotencyKey) -> Facts:
    """Read what is known about a key. Three queries at most, once for each object."""
    known: Facts | None = obj.__dict__.get("_facts")
    if known is None:
        using = str(obj._state.db)
        live = obj.locked_until is not None and in_flight(using=using).filter(pk=obj.pk).exists()
        keys = IdempotencyKey.objects.using(using)
        open_ = obj.status == Status.IN_PROGRESS and not live
        known = obj.__dict__["_facts"] = Facts(
            row=obj,
            steps=list(IdempotencyStep.objects.using(using).filter(key=obj).order_by("pk")),
            live=live,
            unleased=open_ and keys.filter(unleased(using), pk=obj.pk).exists(),
        )
    return known


def expiry(facts: Facts) -> str:
    """Return when the key expires, in words where that is not a time."""
    if facts.live:
        return _("never, while it is in progress")
    if not facts.needs_attention:
        return moment(facts.row.expires_at)
    kept_for = get_settings().unsettled_seconds
    if kept_for is None:
        return _("never, while it needs attention")
    until = moment(facts.row.expires_at + timedelta(seconds=kept_for))
    return _("%(time)s (UNSETTLED_TTL): cleanup then deletes the key and logs an error") % {"time": until}
