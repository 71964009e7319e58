"""A step of an attempt, the interface of the journal that keeps the steps, and the journal for work without steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

from django.utils import timezone

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyStep
from ..protocol.outcomes import Resource
from .results import decode

Kind = IdempotencyStep.Kind


@dataclass(frozen=True, slots=True)
class CallInDoubt:
    """A call or a write that was started but has no result. The values of `operation.doubts` are of this type.

    Args:
        started_at: when the step was first started. With `on_abandoned="hold"`, when it was last started, because
            `reconcile` has settled the earlier starts.
        age: the time from `started_at` to the beginning of this attempt, as a timedelta, by the database's clock.
        keyed: whether `derive_key` was called before each start.
    """

    started_at: datetime
    age: timedelta
    keyed: bool


@dataclass(slots=True)
class Step:
    """What an attempt knows about one step. The attempt's decisions about its steps are filters over these objects.

    Attributes:
        kind: the kind of the step once it has started or finished, and "" before that.
        started: a call or a write has begun, and may have taken effect.
        finished: it has a result, or its value is lost.
        text: the result as JSON.
        began: when this attempt made the call, by `time.monotonic()`, or 0.
        doubt: when the step was started, and whether each start was keyed; None if it was not started.
        handed_on: the result itself, in a tuple, if it can't be kept and protection is off.
        broke: the exception that a `write` raised.
        keyed: this run of the work has asked for the step's derived key.
        used: this run has asked for the step by its name.
        announced: an `acall` with this name has begun, perhaps concurrently with others.
        received: this run has been given the step's result.
    """

    name: str
    kind: str = ""
    started: bool = False
    finished: bool = False
    text: str | None = None
    began: float = 0
    doubt: CallInDoubt | None = None
    handed_on: tuple[Any] | None = None
    broke: BaseException | None = None
    keyed: bool = False
    used: bool = False
    announced: bool = False
    received: bool = False

    def begin(self) -> None:
        """Prepare for another run of the work, which must request its steps and derived keys again."""
        self.keyed = self.used = self.announced = self.received = False

    def start(self, *, keyed: bool = False) -> None:
        """Note that a call or a write begins. The step is in doubt until it ends."""
        self.doubt = CallInDoubt(timezone.now(), timedelta(), keyed and (self.doubt is None or self.doubt.keyed))
        self.began = time.monotonic()
        self.started = True

    def finish(self, text: str | None) -> None:
        # The order matters: if a signal handler raises an exception in between, the step is still in doubt.
        self.text = text
        self.finished = True

    @property
    def in_doubt(self) -> bool:
        return self.started and not self.finished

    @property
    def lost(self) -> bool:
        return self.finished and self.text is None and self.handed_on is None

    @property
    def is_known(self) -> bool:
        return self.finished and not self.lost

    @property
    def is_unreceived(self) -> bool:
        """Whether the step's result was stored after the work had stopped waiting for it.

        A time limit around `acall` or `awrite`, or an exception from a signal, can keep the result from reaching the
        work.
        """
        return self.finished and self.used and not self.received and self.kind != Kind.FETCH

    @property
    def is_unasked(self) -> bool:
        """Whether an earlier run has finished this step, and the current run has not requested it."""
        return self.finished and not (self.used or self.received) and self.kind != Kind.FETCH

    def value(self) -> Any:
        """The stored result. Raises `DoesNotExist` if the result is a model instance whose row is gone."""
        return decode(self.text) if self.handed_on is None else self.handed_on[0]


class StepJournal:
    """Keeps an attempt's steps, and says how long the attempt may take. This base class itself keeps nothing."""

    lease: float = 0
    writing = False
    """Whether the function of a `write` is running."""

    def steps(self) -> dict[str, Step]:
        """Return the steps of earlier attempts."""
        return {}

    def allow(self) -> None:
        """Raise `IdempotencyConfigurationError` if this work has no steps."""

    def refuse_transactions(self, what: str) -> None:
        """Raise `IdempotencyConfigurationError` if protected work could not run in the transaction that is open."""

    def renew(self) -> None:
        raise NotImplementedError

    def refer(self, resource: Resource) -> None:
        """Store the operation's resource immediately, or leave it to be stored at the end of the work."""

    def start_call(self, step: Step, *, keyed: bool | None) -> None:
        """Commit the start of a call. `keyed` is None if `reconcile` looks up an earlier call."""
        raise NotImplementedError

    def finish_call(self, step: Step, text: str | None) -> BaseException | None:
        """Commit a call's result. None means that its value is lost. Return the limit that struck meanwhile, if any."""
        return None

    def note_error(self, step: Step, error: str) -> None:
        """Keep the reason why a call is in doubt."""

    def keep_fetched(self, step: Step, text: str) -> None:
        """Store the result of a `fetch`."""

    def write(self, step: Step, function: Callable[[], Any]) -> tuple[Any, str | None]:
        """Run the function and store its result in one transaction. Return the result, and its JSON if it has one."""
        raise NotImplementedError

    def hand_on(self, step: Step, value: Any, error: Exception) -> None:
        """Handle a result that can't be stored: raise the error, or put the result in `step.handed_on`."""
        raise NotImplementedError

    def tell_long_call(self, step: Step) -> None:
        raise NotImplementedError

    def refuse_renamed(self, name: str, unasked: tuple[str, ...]) -> None:
        """Raise `IdempotencyConfigurationError` if an earlier attempt probably made this call under another name."""


class NoSteps(StepJournal):
    """The journal of work that cannot have steps: it refuses every step."""

    def __init__(self, why: str) -> None:
        self.why = why

    def allow(self) -> NoReturn:
        raise IdempotencyConfigurationError(self.why)

    def renew(self) -> None:
        self.allow()


ONE_TRANSACTION = NoSteps(
    "call, fetch, write and renew are for leased mode, and this operation runs in one transaction. "
    "Write to the database directly. To call something outside, pass lease=timedelta(minutes=2)."
)
