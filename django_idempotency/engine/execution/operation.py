"""The `Operation` handed to a view: one attempt at the view's work, with named steps.

What the steps mean is written only here. The journal decides where they are stored: in a table for leased work, in
memory for work that runs without protection, and nowhere for work that has no steps. See Note [One meaning].

# Note [One meaning]
Projects use observe mode first, run their tests with `ENABLED=False`, and may allow requests without a key. If steps
behaved differently without protection, all of that would seem to work, and the first protected charge would fail after
the money had moved. Step names, conversions, `results`, and the errors raised before a call are therefore the same
everywhere. The one difference concerns a result that can't be stored, which is an error after the call. Without
protection, the view gets this result unchanged, and the error is only logged: raising it would make the client retry,
and the retry would charge again.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, cast, overload
from uuid import UUID, uuid4, uuid5

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import models

from ...exceptions import IdempotencyConfigurationError, ResultLost, ResultNotStorable
from ...models import IdempotencyStep
from ..conf import get_settings
from ..protocol.digests import Identity, derived_key, has_controls
from ..protocol.error_text import describe
from ..protocol.outcomes import Resource
from .bridge import awaited, is_on_event_loop, synchronous, until_done
from .results import as_stored, encode_returned, encode_step
from .steps import ONE_TRANSACTION, CallInDoubt, Step, StepJournal

MAX_NAME, MAX_TYPE, MAX_ID = 100, 100, 255
"""The widths of the database columns, in characters."""
_INSIDE: ContextVar[tuple[Any, str]] = ContextVar("inside", default=(None, ""))
"""The operation and the name of the `call` or `fetch` whose function is running."""
Kind = IdempotencyStep.Kind
P = ParamSpec("P")
T = TypeVar("T")


class Operation:
    """One attempt at the work, available to the view as `request.idempotency`. It has no steps in atomic mode.

    Args:
        key: the key that the client sent, or None if the request has no key or is not protected.
        attempt: 1 for the first run of the work, and higher for each later run.
        request: the view's request, or None in `run_once` and `recover_idempotency_keys`.
        resource: the type and id that `refer_to` stored, or None if it was never called.
    """

    _request: Callable[[], Any] | None = None
    _namespace: UUID | None = None
    _reconciling = False
    """Whether `reconcile`, rather than the work, is running."""

    def __init__(
        self,
        identity: Identity | None,
        attempt: int = 1,
        resource: Resource | None = None,
        journal: StepJournal = ONE_TRANSACTION,
        derives_from: Identity | None = None,
    ) -> None:
        """Create the operation. While protection is off, keys are derived from the identity `derives_from`.

        Every atomic request creates one, so this must stay fast.
        """
        self.key: str | None = None if identity is None else identity.key
        self.attempt = attempt
        self.resource = resource
        self._identity = identity
        self._derives_from = derives_from or identity
        self._journal = journal
        self._steps: dict[str, Step] = journal.steps()

    def _begin(self, *, reconciling: bool) -> None:
        """Prepare a run of the work or of `reconcile`.

        Each run may read all stored results, may use each step name once, and must request derived keys again.
        """
        self._reconciling = reconciling
        for step in self._steps.values():
            step.begin()

    @property
    def request(self) -> Any:
        return self._request and self._request()

    @request.setter
    def request(self, request: Any) -> None:
        self._request = weakref.ref(request)  # weak, because the request refers to this operation, too

    @property
    def scope(self) -> str | None:
        """The caller's scope as the key's row stores it, or None if there is no key.

        You can pass this value to every function of `django_idempotency.maintenance` that takes a scope.
        """
        return None if self._identity is None else self._identity.scope

    @property
    def name(self) -> str | None:
        """The name of the operation as the key's row stores it, or None if there is no key.

        After a restore, the metadata of a charge must tell whose charge it is: send it along with `scope` and `key`.
        """
        return None if self._identity is None else self._identity.operation

    @property
    def reference(self) -> str | None:
        """The 16 hexadecimal digits that represent the key in logs and the admin, or None if there is no key."""
        return None if self._identity is None else self._identity.reference

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The names of calls that were started but have no result and so may or may not have taken effect."""
        return self._names(lambda step: step.in_doubt)

    @property
    def doubts(self) -> dict[str, CallInDoubt]:
        """When each call in `in_doubt` was started, by its name, so that `reconcile` knows how long ago that was.

        Each value has `started_at`, `age` and `keyed`.
        """
        return {step.name: step.doubt for step in self._steps.values() if step.in_doubt and step.doubt}

    @property
    def results(self) -> dict[str, Any]:
        """The results of all finished steps by name, including those of earlier attempts.

        Calls whose value was lost are left out: see `lost`. A model instance is read from the database; if its row is
        gone, `DoesNotExist` is raised.
        """
        finished = [step for step in self._steps.values() if step.finished]
        for step in finished:
            step.received = True
        return {step.name: step.value() for step in finished if not step.lost}

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of calls that took effect but whose values could not be stored.

        `reconcile` can record the value: `operation.call(name, look_up)` stores what `look_up` returns.
        """
        return self._names(lambda step: step.lost)

    def _names(self, matches: Callable[[Step], bool]) -> tuple[str, ...]:
        return tuple(sorted(step.name for step in self._steps.values() if matches(step)))

    def derive_key(self, name: str) -> str:
        """Return a UUID to send as an external call's idempotency key: the same one for `name` in every attempt.

        This also holds while protection is off (`ENABLED`, `observe`), as long as the request carries a key. Without
        one, a retry gets a different UUID, because nothing identifies it as a retry.
        """
        _check(name)
        self._steps.setdefault(name, Step(name)).keyed = True
        if self._derives_from is not None:
            return derived_key(self._derives_from, name, get_settings().namespace)
        self._namespace = self._namespace or uuid4()
        return str(uuid5(self._namespace, name))

    def refer_to(self, what: models.Model | str, id_: str | int | UUID | None = None, /) -> None:
        """Store a reference to the object that the key is about, such as an order.

        The admin, events and logs show the reference, and you can use it to search for the key in the admin. A second
        call replaces the first reference.

        In atomic mode the reference is stored with the result, without an extra statement. In leased mode an extra
        statement checks the fence and stores the reference immediately. To commit the reference together with a `write`
        step, call `refer_to` inside that step's function.

        Args:
            what: a saved model instance, stored as its label ("shop.order") and primary key, or a type: 1 to 100
                characters without spaces.
            id_: the id, if `what` is a type: 1 to 255 characters, such as "59". An int or a UUID is stored as text.

        Raises:
            LeaseLost: in leased mode, if another worker has taken the key over.
            IdempotencyConfigurationError: if the instance has not been saved, or if the type or the id cannot be
                stored.
        """
        resource = resource_of(what, id_)
        self._journal.refer(resource)
        self.resource = resource

    async def arefer_to(self, what: models.Model | str, id_: str | int | UUID | None = None, /) -> None:
        """`refer_to` for `async def` views."""
        await sync_to_async(self.refer_to)(what, id_)

    def call(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call another system, such as a payment gateway or a mail server.

        The start of the call is committed, then `function` runs with no transaction open, and its result is committed.
        A later attempt gets the stored result instead of calling again.

        If `function` raises an exception, for example on a timeout, the call may have taken effect and is therefore in
        doubt. The exception propagates. A clear refusal, such as a declined card, is a result: return it rather than
        raising an exception.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`, converted to JSON and back.

        Raises:
            LeaseLost: before or after the call, if another worker has taken the key over.
            OutcomeUnknown: before the call, if an earlier attempt started it and `on_abandoned="retry-keyed"` forbids
                starting it again. Call `derive_key` before this call in each attempt.
            ResultNotStorable: after the call, if the result cannot be stored as JSON, or takes more than 1 MiB as JSON.
                The step is marked as done, but its value is lost.
            ResultLost: in a later attempt, if the value of this call was lost. The call is not repeated.
            IdempotencyConfigurationError: if a name is used twice, or a transaction is open.
        """
        self._allow(name, function, "acall")
        step, value = self._start(name)
        if step.is_known:
            return cast(T, self._received(name, value))
        try:
            value = self._within(name, partial(function, *args, **kwargs))
            if isawaitable(value):
                raise IdempotencyConfigurationError(
                    f"step {name!r}: {function!r} returned {value!r}, which no code awaits: the call may not have been "
                    f"made. Write `await operation.acall({name!r}, …)`."
                )
        except BaseException as error:
            self._note(step, error)
            raise
        return cast(T, self._received(name, self._finish(step, value)))

    def fetch(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Read a value, such as an exchange rate, from another system without changing anything there.

        The result is stored after the read, within your transaction if one is open, and later attempts get the stored
        result. An interrupted fetch leaves nothing behind, and the retry repeats it. A key whose steps are all fetches
        is never in doubt or half done.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`, converted to JSON and back.

        Raises:
            LeaseLost: after the call, if another worker has taken the key over.
            ResultNotStorable: if the result cannot be stored as JSON, or takes more than 1 MiB as JSON. Nothing is
                stored.
            IdempotencyConfigurationError: if a name is used twice.
        """
        self._allow(name, function, "afetch")
        step, value = self._look_up(name)
        if not step.is_known:
            value = self._keep_fetched(step, self._within(name, partial(function, *args, **kwargs)))
        return cast(T, self._received(name, value))

    def write(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` in a transaction, so that its writes and its result are committed together, exactly once.

        The transaction is opened on the key's database, and locks the key's row. Later attempts get the stored result
        without running `function` again.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`: JSON, or one model instance. An instance is stored as its primary key, and a later
            attempt fetches it again.

        Raises:
            LeaseLost: if another worker has taken the key over. Everything is rolled back.
            ResultNotStorable: if the result is neither JSON nor a saved model instance, or takes more than 1 MiB as
                JSON. Everything is rolled back.
            TransactionBroken: if `function` returned although the database had rolled back its first writes. The step
                is then in doubt, unless `function` caught a deadlock: in that case, nothing was committed.
            IdempotencyConfigurationError: if a name is used twice, or a transaction is open.
        """
        self._allow(name, function, "awrite")
        return cast(T, self._received(name, self._written(name, partial(function, *args, **kwargs))))

    def renew(self) -> None:
        """Restart the lease at its full length, for work that takes longer than one lease.

        Raises:
            LeaseLost: another worker has taken the key over.
        """
        self._journal.renew()

    @overload
    async def acall(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def acall(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def acall(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`call` for `async def` views. A `def` function runs in a thread.

        If the request is cancelled, this still waits up to the length of a lease for `function` to return, and stores
        its result. Give the call itself a time limit.
        """
        if (step := self._steps.get(name)) is not None:
            step.announced = True
        elif self._unasked_calls():
            await asyncio.sleep(0)  # lets concurrent calls announce themselves first
        call = self._astep(self._start, self._finish, name, partial(function, *args, **kwargs))
        return self._received(name, await until_done(call, at_most=self._journal.lease))

    @overload
    async def afetch(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def afetch(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def afetch(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fetch` for `async def` views. A `def` function runs in a thread."""
        fetch = self._astep(self._look_up, self._keep_fetched, name, partial(function, *args, **kwargs))
        return self._received(name, await fetch)

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

    @overload
    async def awrite(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def awrite(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def awrite(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`write` for `async def` views. `function` may be a `def` or an `async def` function."""
        self._journal.allow()
        write = partial(self._written, name, partial(synchronous(function), *args, **kwargs))
        return self._received(name, await sync_to_async(write)())

    async def arenew(self) -> None:
        """`renew` for `async def` views."""
        await sync_to_async(self.renew)()

    # --- what a step means

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
        """Mark the step name as used. Return its record, and its result if that is known."""
        self._journal.allow()
        _check(name)
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
            if not (step.started or self._reconciling):
                self._refuse_renamed(name)
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

    # --- the end

    def _may_end_with(self, error: Exception) -> bool:
        """Whether the framework's response to this exception may be final.

        It must not be final if any step is in doubt or any call's value has been lost, because the exception may have
        come from that step or call. The same is true if a `write` raised it after other steps had finished, because a
        completed key would hide their effects.
        """
        steps = self._steps.values()
        raised = any(step.broke is error for step in steps) and any(step.finished for step in steps)
        return not (raised or any(step.in_doubt or step.lost or step.is_unreceived for step in steps))

    def _left_behind(self) -> str:
        """Return the reason why the work's answer must not complete the key, or an empty string if there is none.

        A key completed too early could leave a paying customer without an order. The key therefore stays open and
        visible as long as a call's value is missing or it is unknown whether a step took effect. Once a call has been
        made, there are two other cases in which the key stays open: the work caught the exception raised by a failed
        `write`, or it did not request a step that an earlier attempt had finished. A stored `fetch` may be skipped,
        because it only reads.
        """
        steps = self._steps.values()
        doubts = ", ".join(self.in_doubt)
        if self._reconciling:
            # The answer of `reconcile` is final, even without the call's value. If the operation has only one call, the
            # answer settles it; if there are several, `reconcile` may have looked up a different one.
            if not doubts or self._names(lambda step: step.kind == Kind.CALL) == self.in_doubt[:1]:
                return ""
            return (
                f"reconcile answered, and it is unknown whether {doubts} took effect. Where there are several calls, "
                "it has to record each: operation.call(name, look_up)."
            )
        if doubts:
            return f"The work answered, and it is unknown whether {doubts} took effect."
        if lost := ", ".join(self.lost):
            return f"The work answered, and the value of {lost} was lost."
        if unreceived := ", ".join(self._names(lambda step: step.is_unreceived)):
            return (
                f"The work answered without the result of {unreceived}, which was stored after the work had given up."
            )
        if not any(step.kind == Kind.CALL and step.finished for step in steps):
            return ""
        for broke in (step.broke for step in steps if step.broke is not None):
            return f"A write raised after a call was made, and the work answered all the same: {describe(broke)}"
        unasked = ", ".join(self._names(lambda step: step.is_unasked))
        return unasked and (
            f"The work answered without asking for {unasked}, which an earlier attempt has recorded. Ask "
            "for the steps first: a condition of the view must not answer before them."
        )

    def _unasked_calls(self) -> tuple[str, ...]:
        return self._names(lambda step: step.kind == Kind.CALL and step.is_unasked and not step.announced)

    def _refuse_renamed(self, name: str) -> None:
        """Report, or refuse, a new call if the work has not requested all finished calls before it.

        A deployment that renames "charge" to "charge card" would otherwise charge twice for each key that is in
        progress.
        """
        if unasked := self._unasked_calls():
            self._journal.refuse_renamed(name, unasked)


def _check(name: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise IdempotencyConfigurationError(
            f"{name!r} is not a valid step name: pass a str of 1 to {MAX_NAME} characters, the same in every attempt."
        )


def resource_of(what: models.Model | str, id_: str | int | UUID | None) -> Resource:
    """Return a resource's type and id. Raises `IdempotencyConfigurationError` if either can't be kept."""
    if isinstance(what, models.Model):
        # An instance has its own id. A second id passed along with it is rejected below.
        id_ = None if id_ is not None or what.pk is None else str(what.pk)
        what = what._meta.label_lower
    text = str(id_) if isinstance(id_, str | int | UUID) and not isinstance(id_, bool) else ""
    typed = isinstance(what, str) and _fits(what, MAX_TYPE) and not any(c.isspace() for c in what)
    if not (typed and _fits(text, MAX_ID)):
        raise IdempotencyConfigurationError(
            f"refer_to({what!r:.200}, {id_!r:.300}): pass a saved model instance alone, or a type of 1 to {MAX_TYPE} "
            f"characters without spaces and an id: a str, an int or a UUID of 1 to {MAX_ID} characters without control "
            "characters, as in refer_to('order', '59')."
        )
    return what, text


def _fits(text: str, width: int) -> bool:
    return 0 < len(text) <= width and not has_controls(text)
