"""What does a step of an attempt mean?

The journal decides where a step is stored: in a table for leased work, in memory for work that runs without protection,
and nowhere for work that has no steps. See Note [One meaning].

# Note [One meaning]
Projects use observe mode first, run their tests with `ENABLED=False`, and may allow requests without a key. If steps
behaved differently without protection, all of that would seem to work, and the first protected charge would fail after
the money had moved. Step names, conversions, `results`, and the errors raised before a call are therefore the same
everywhere. There is one exception: a result that can't be stored. With protection, it raises an error once the call has
returned. Without protection, the view gets the result unchanged, and the error is only logged and issued as a warning.
Raising it would make the client retry, and the retry would charge again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist

from ...exceptions import IdempotencyConfigurationError, ResultLost, ResultNotStorable
from ...models import IdempotencyStep
from ..protocol.error_text import describe
from ..protocol.outcomes import Resource
from .bridge import awaited, is_on_event_loop
from .results import as_stored, encode_returned, encode_step
from .steps import Step, StepJournal

MAX_NAME = 100
"""The width of the database column, in characters."""
_INSIDE: ContextVar[tuple[Any, str]] = ContextVar("inside", default=(None, ""))
"""The operation and the name of the `call` or `fetch` whose function is running."""
Kind = IdempotencyStep.Kind


class Attempt:
    """One attempt's steps, and the rules for them. The work is passed its attempt as an `Operation`."""

    resource: Resource | None
    _journal: StepJournal
    _steps: dict[str, Step]
    _reconciling = False
    """Whether `reconcile`, rather than the work, is running."""

    def _begin(self, *, reconciling: bool) -> None:
        """Prepare a run of the work or of `reconcile`.

        Each run may read all stored results, may use each step name once, and must request derived keys again.
        """
        self._reconciling = reconciling
        for step in self._steps.values():
            step.begin()

    def _names(self, matches: Callable[[Step], bool]) -> tuple[str, ...]:
        return tuple(sorted(step.name for step in self._steps.values() if matches(step)))

    def _received(self, name: str, value: Any) -> Any:
        """Note that this step's result has reached the work, and return it.

        A time limit around `acall` or `awrite`, or an exception from a signal, can keep a stored result from reaching
        the work.
        """
        self._steps[name].received = True
        return value

    def _within(self, name: str, function: Callable[[], Any]) -> Any:
        """Call a step's function. `_INSIDE` is restored even if a signal handler raises an exception."""
        outer = _INSIDE.get()
        try:
            try:
                _INSIDE.set((self, name))
                return function()
            finally:
                _INSIDE.set(outer)
        finally:  # again, in case an exception struck before the first reset
            _INSIDE.set(outer)

    async def _awithin(self, name: str, function: Callable[[], Any]) -> Any:
        outer = _INSIDE.get()
        try:
            try:
                _INSIDE.set((self, name))
                return await awaited(function)
            finally:
                _INSIDE.set(outer)
        finally:
            _INSIDE.set(outer)

    async def _astep(self, start: Any, finish: Any, name: str, function: Callable[[], Any]) -> Any:
        step, value = await sync_to_async(start)(name)
        if step.is_known:
            return value
        try:
            value = await self._awithin(name, function)
        except Exception as error:  # not CancelledError: a cancelled task must not start a query
            await sync_to_async(self._note)(step, error)
            raise
        return await sync_to_async(finish)(step, value)

    def _allow(self, name: str, function: Any, instead: str) -> None:
        self._journal.allow()
        if iscoroutinefunction(function):
            why = f"{function!r} is a coroutine function"
        elif is_on_event_loop():
            why = "this is an event loop, which it would block, and Django allows no queries there"
        else:
            return
        raise IdempotencyConfigurationError(f"step {name!r}: {why}. Write `await operation.{instead}({name!r}, …)`.")

    def _look_up(self, name: str, *, for_call: bool = False) -> tuple[Step, Any]:
        """Mark the step's name as used. Return the step, and its result if the result is known."""
        self._journal.allow()
        check_name(name)
        operation, outer = _INSIDE.get()
        if operation is self:
            raise IdempotencyConfigurationError(
                f"step {name!r} was started inside the function of step {outer!r}. A retry that finds the result of "
                f"{outer!r} would not reach it. Start it before or after."
            )
        step = self._steps.setdefault(name, Step(name))
        if step.used:
            raise IdempotencyConfigurationError(
                f"step {name!r} was used twice in one attempt. Give each step of an operation a name of its own."
            )
        if (step.lost or step.in_doubt) and not for_call:
            raise IdempotencyConfigurationError(
                f"step {name!r} was started as an external call before, and has no result. Give this step another name."
            )
        if step.lost and not self._reconciling:
            raise ResultLost(
                f"The call {name!r} took effect, and its value was lost, because it could not be stored as JSON. The "
                "call is not repeated. Enter the value with record_outcome, in the admin or in `reconcile`, and let "
                "the step's function return a dict: to_dict(), model_dump(mode='json')."
            )
        step.used, step.received = True, False
        if not step.is_known:
            return step, None
        try:
            return step, step.value()
        except ObjectDoesNotExist:
            step.received = True  # the exception tells the work that the row is gone
            raise

    def _start(self, name: str) -> tuple[Step, Any]:
        step, value = self._look_up(name, for_call=True)
        if not step.finished:
            # A deployment that renames "charge" to "charge card" would otherwise charge twice for each key in progress.
            if not (step.started or self._reconciling) and (unasked := self._unasked_calls()):
                self._journal.refuse_renamed(name, unasked)
            # A look-up by `reconcile` is not a call, so it doesn't matter whether `reconcile` requests the derived key.
            self._journal.start_call(step, keyed=None if self._reconciling else step.keyed)
            step.kind = Kind.CALL
            if step.doubt is None or not self._reconciling:
                step.start(keyed=step.keyed and not self._reconciling)
        return step, value

    def _finish(self, step: Step, value: Any) -> Any:
        self._journal.tell_long_call(step)
        # The call took effect, so record that before raising anything.
        text, error = encode_returned(value)
        limit = self._journal.finish_call(step, text)
        return self._finished(step, value, text, limit or error)

    def _note(self, step: Step, error: BaseException) -> None:
        self._journal.tell_long_call(step)
        if step.in_doubt:
            self._journal.note_error(step, describe(error))

    def _keep_fetched(self, step: Step, value: Any) -> Any:
        text: str | None = None
        try:
            text = encode_step(value)
            self._journal.keep_fetched(step, text)
        except ResultNotStorable as error:
            self._journal.hand_on(step, value, error)
        step.kind = Kind.FETCH
        return self._finished(step, value, text)

    def _written(self, name: str, function: Callable[[], Any]) -> Any:
        step, value = self._look_up(name)
        return value if step.is_known else self._write(step, function)

    def _write(self, step: Step, function: Callable[[], Any]) -> Any:
        about, step.kind = self.resource, Kind.WRITE
        try:
            value, text = self._journal.write(step, function)
        except BaseException as error:
            step.broke, self.resource = error, about
            raise
        return self._finished(step, value, text)

    def _finished(self, step: Step, value: Any, text: str | None, error: BaseException | None = None) -> Any:
        """Note that the step has ended. Return its result as every retry will read it, or raise the error."""
        step.finish(text)
        if isinstance(error, ResultNotStorable):
            self._journal.hand_on(step, value, error)
        elif error is not None:
            raise error
        return value if text is None else as_stored(value, text)

    def _unasked_calls(self) -> tuple[str, ...]:
        return self._names(lambda step: step.kind == Kind.CALL and step.is_unasked and not step.announced)


def check_name(name: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise IdempotencyConfigurationError(
            f"{name!r} is not a valid step name: pass a str of 1 to {MAX_NAME} characters, the same in every attempt."
        )
