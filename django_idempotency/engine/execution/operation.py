"""`Operation`: what the view and the function of `run_once` know about their attempt, and the named steps of it.

Atomic mode has no steps. `leased.LeasedOperation` keeps the steps.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Set
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID, uuid4, uuid5

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, transaction

from ...exceptions import IdempotencyConfigurationError, ResultNotStorable
from ..protocol.digests import Identity, derived_key, has_controls
from ..protocol.outcomes import Finished, Resource
from .bridge import awaited, finished, synchronous

MAX_NAME, MAX_TYPE, MAX_ID = 100, 100, 255
"""Characters: the widths of the columns."""
MAX_STEP_BYTES = 1024 * 1024
"""The result of a step is kept for each attempt to come, and read with all others. A megabyte is no receipt."""
P = ParamSpec("P")
T = TypeVar("T")


class Operation:
    """One attempt at an operation: `request.idempotency` in the view. In atomic mode it has no steps.

    Args:
        key: the key that the client sent. None if the request has no key, or is not protected.
        attempt: 1 for the first run. Each retry that runs again has a higher number.
        request: what the view is called with. None without a client: in `run_once`, and in `recover_idempotency_keys`.
        resource: what the operation is about: type and id, as `refer_to` has kept them. None: `refer_to` was never
            called.
    """

    request: Any = None
    _lease: float = 0
    _namespace: UUID | None = None
    _keyed: frozenset[str] = frozenset()
    """The names of the steps whose derived key was asked for."""
    _doubts: Set[str] = frozenset()
    _kept: Mapping[str, str | None] = {}
    """The steps of this and earlier attempts: those that were started and have no result, and the results."""

    def __init__(
        self, identity: Identity | None, attempt: int = 1, resource: Resource | None = None, steps_on: str | None = None
    ) -> None:
        """steps_on: alias of the database of a leased view. Its steps run, and nothing remembers them."""
        self.key: str | None = None if identity is None else identity.key
        self.attempt = attempt
        self._identity = identity
        self.resource = resource
        self._steps_on = steps_on
        if steps_on is not None:
            self._begin()

    def _begin(self) -> None:
        """The work begins, or begins again after `reconcile`: it may use each name, and gets what is recorded."""
        self._used: set[str] = set()
        self._unasked = {*self._doubts, *self._kept}
        """What is recorded, and the work has not asked for."""

    @property
    def reference(self) -> str | None:
        """The 16 hexadecimal digits that name the key in logs and in the admin. None without a key."""
        return None if self._identity is None else self._identity.reference

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The names of calls that were started and have no result: they may or may not have happened."""
        return tuple(sorted(self._doubts))

    @property
    def results(self) -> dict[str, Any]:
        """The result of each finished step of this and earlier attempts, by the step's name.

        A model instance is fetched again: this asks the database, and raises its `DoesNotExist`.
        """
        self._unasked = set()
        return {name: decode(text) for name, text in self._kept.items()}

    def derive_key(self, name: str) -> str:
        """An idempotency key for the other side: a UUID, the same in every attempt, another one for each name.

        Without a key of its own, the operation cannot recognise a retry: then it is stable within this request only.
        """
        _check(name)
        self._keyed |= {name}
        if self._identity is not None:
            return derived_key(self._identity, name)
        self._namespace = self._namespace or uuid4()
        return str(uuid5(self._namespace, name))

    def refer_to(self, what: models.Model | str, id_: str | int | UUID | None = None, /) -> None:
        """Keep what the operation is about with the key: for the admin, the search, events and logs.

        Atomic mode: the result carries it, so it costs no statement. Leased mode: one statement, under the fence. Call
        it inside the function of `write`, and both commit together. A second call replaces the first one.

        Args:
            what: a saved model instance, kept as its label ("shop.order") and primary key; or a type of 1 to 100
                characters without spaces.
            id_: of a type: 1 to 255 characters, such as "59"; an int or a UUID is kept as its text.

        Raises:
            LeaseLost: in leased mode, if another worker has taken the key over.
            IdempotencyConfigurationError: for an instance that was not saved, or a type or id that cannot be kept.
        """
        resource = resource_of(what, id_)
        self._keep_resource(resource)
        self.resource = resource

    async def arefer_to(self, what: models.Model | str, id_: str | int | UUID | None = None, /) -> None:
        """`refer_to` for `async def` views."""
        await sync_to_async(self.refer_to)(what, id_)

    def call(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something outside: a payment gateway, a mail server, another service.

        Commits "started", runs `function` with no transaction open, and commits the result. A later attempt gets this
        result, and `function` is not called. An exception of `function` propagates and leaves the call in doubt: the
        outcome is unknown (a timeout, for example). Return a clear refusal, such as a declined card.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`, as JSON gives it back.

        Raises:
            LeaseLost: before or after the call, if another worker has taken the key over.
            ResultNotStorable: after the call, for a result that is not JSON, or longer than 1 MiB of JSON. The step is
                marked as done, without a value.
            IdempotencyConfigurationError: for a name that is used twice, or inside a transaction.
        """
        _refuse_coroutine(name, function, "acall")
        known, value = self._start(name)
        if known:
            return cast(T, value)
        try:
            value = function(*args, **kwargs)
            if isawaitable(value):
                raise IdempotencyConfigurationError(
                    f"step {name!r}: {function!r} returned {value!r}, which no code awaits: the call may not have been "
                    f"made. Write `await operation.acall({name!r}, …)`."
                )
        except BaseException as error:
            self._note(name, error)
            raise
        return cast(T, self._finish(name, value))

    def fetch(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Read something outside that changes nothing there: an exchange rate, the price of a parcel.

        Runs `function`, then commits its result in one statement; inside a transaction, the result commits with that. A
        later attempt gets this result. An interrupted fetch leaves no trace: it is never in doubt, and a key that has
        only fetched needs no attention.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`, as JSON gives it back.

        Raises:
            LeaseLost: after the call, if another worker has taken the key over.
            ResultNotStorable: the result is not JSON, or longer than 1 MiB of JSON. Nothing is kept.
            IdempotencyConfigurationError: for a name that is used twice.
        """
        _refuse_coroutine(name, function, "afetch")
        known, value = self._look_up(name)
        return cast(T, value if known else self._keep_fetched(name, function(*args, **kwargs)))

    def write(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Write to this database exactly once: what `function` writes commits together with the step's result.

        Opens a transaction, locks the key's row, runs `function`, and commits. A later attempt gets the result, and
        `function` is not called.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`: JSON, or one model instance, which is kept by its primary key and fetched again.

        Raises:
            LeaseLost: another worker has taken the key over. Everything is rolled back.
            ResultNotStorable: the result is neither JSON nor a saved model instance, or longer than 1 MiB of JSON.
                Everything is rolled back.
            TransactionBroken: `function` lost what it had written first, and returned. The step is in doubt; or, after
                a deadlock whose error `function` has caught, nothing was committed.
            IdempotencyConfigurationError: for a name that is used twice, or inside a transaction.
        """
        _refuse_coroutine(name, function, "awrite")
        known, value = self._look_up(name)
        if known:
            return cast(T, value)
        return cast(T, self._write(name, partial(function, *args, **kwargs)))

    def renew(self) -> None:
        """Start the lease again from now. For work that may take longer than `lease`.

        Raises:
            LeaseLost: another worker has taken the key over.
        """

    @overload
    async def acall(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def acall(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def acall(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`call` for `async def` views. `function` may be `def`, which runs in a thread, or `async def`.

        A request that is cancelled first waits for the call and keeps its result, for the length of the lease at most.
        So put a limit of time into `function`.
        """
        call = self._astep(self._start, self._finish, name, partial(function, *args, **kwargs))
        return await finished(call, at_most=self._lease)

    @overload
    async def afetch(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def afetch(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def afetch(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fetch` for `async def` views. `function` may be `def`, which runs in a thread, or `async def`."""
        return await self._astep(self._look_up, self._keep_fetched, name, partial(function, *args, **kwargs))

    async def _astep(self, start: Any, finish: Any, name: str, function: Callable[[], Any]) -> Any:
        known, value = await sync_to_async(start)(name)
        if known:
            return value
        try:
            value = await awaited(function)
        except Exception as error:  # not a cancellation: nothing more is awaited then
            if name in self._doubts:
                await sync_to_async(self._note)(name, error)
            raise
        return await sync_to_async(finish)(name, value)

    @overload
    async def awrite(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def awrite(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def awrite(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`write` for `async def` views. `function` may be `def` or `async def`."""
        return await sync_to_async(self.write)(name, synchronous(function), *args, **kwargs)

    async def arenew(self) -> None:
        """`renew` for `async def` views."""
        await sync_to_async(self.renew)()

    # --- how the steps run where nothing remembers them

    def _look_up(self, name: str, *, for_call: bool = False) -> tuple[bool, Any]:
        """Use the name. The result of an earlier attempt, if there is one."""
        _check(name)
        if name in self._used:
            raise IdempotencyConfigurationError(
                f"step {name!r} was used twice in one attempt. Give each step of an operation a name of its own."
            )
        if name in self._doubts and not for_call:
            raise IdempotencyConfigurationError(
                f"step {name!r} was started as an external call before, and has no result. Give this step another name."
            )
        self._used.add(name)
        self._unasked.discard(name)
        return (True, decode(self._kept[name])) if name in self._kept else (False, None)

    def _start(self, name: str) -> tuple[bool, Any]:
        return self._look_up(name, for_call=True)

    def _finish(self, name: str, value: Any) -> Any:
        return value

    _keep_fetched = _finish

    def _note(self, name: str, error: BaseException) -> None:
        """Keep the reason why a call is in doubt."""

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        with transaction.atomic(using=self._steps_on):
            return function()

    def _keep_resource(self, resource: Resource) -> None:
        """Store it now. Nothing to do where the result carries it, or without a key."""


class AtomicOperation(Operation):
    """Of a view, or of a work, without `lease`: everything happens in one transaction, so nothing is named a step.

    Each protected request makes one, so making it has to cost nothing.
    """

    def _needs_a_lease(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise IdempotencyConfigurationError(
            "call, fetch, write and renew are for leased mode, and this operation runs in one transaction. "
            "Write to the database directly. To call something outside, pass lease=timedelta(minutes=2)."
        )

    call = acall = fetch = afetch = write = awrite = renew = arenew = _needs_a_lease


def _check(name: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise IdempotencyConfigurationError(
            f"{name!r} is no name for a step: give a str of 1 to {MAX_NAME} characters that stays the same in a retry."
        )


def _refuse_coroutine(name: str, function: Any, instead: str) -> None:
    if iscoroutinefunction(function):
        raise IdempotencyConfigurationError(
            f"step {name!r}: {function!r} is a coroutine function. Write `await operation.{instead}({name!r}, …)`."
        )


class Work(Protocol[T]):
    """Work that must run once, and how its result is judged."""

    def run(self, operation: Operation) -> Finished[T]:
        """Do the work: in atomic mode, inside the transaction of the claim.

        Args:
            operation: the handle of the work. Only that of leased work has steps.

        Raises:
            Exception: what the work raises. Its writes are rolled back.
        """

    def answer(self, error: Exception) -> Finished[T] | None:
        """What a framework answers to an exception of the work. Called after the rollback, while it is handled.

        Returns:
            The judged answer, or None if `error` should go on to the caller.
        """

    def reconcile(self, operation: Operation) -> Finished[T] | None:
        """Ask the project what became of an abandoned attempt.

        Returns:
            The final result, or None to run the work again.
        """


def encode_step(value: Any) -> str:
    """The text to keep of a step's result. Raises `ResultNotStorable` as `encode` does, and for too long a text."""
    kept = encode(value)  # ASCII: a character is a byte
    if len(kept) > MAX_STEP_BYTES:
        raise ResultNotStorable(
            f"the result of a step takes {len(kept)} bytes as JSON, and {MAX_STEP_BYTES} are kept at most. Return what "
            "the next steps need, such as the id of the charge."
        )
    return kept


def encode(value: Any) -> str:
    """The text to keep. Raises `ResultNotStorable` for what is neither JSON nor a saved model instance."""
    if isinstance(value, models.Model):
        if value.pk is None or value._state.adding:
            raise ResultNotStorable(f"{value!r} has not been saved, so it cannot be fetched again. Return it saved.")
        kept: dict[str, Any] = {"model": value._meta.label, "pk": value.pk, "using": value._state.db}
    else:
        kept = {"value": value}
    try:
        # NaN and Infinity are no JSON, although Python writes them.
        return json.dumps(kept, cls=DjangoJSONEncoder, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultNotStorable(
            f"{type(value).__qualname__} cannot be kept as JSON ({error}). "
            "Return JSON values (dict, list, str, int, …) or one saved model instance."
        ) from error


def decode(text: str | None) -> Any:
    """The value that was kept, or None if there was none. A model instance is fetched: raises its `DoesNotExist`."""
    if text is None:
        return None
    kept = json.loads(text)
    if "model" in kept:
        return apps.get_model(kept["model"])._base_manager.using(kept["using"]).get(pk=kept["pk"])
    return kept["value"]


def as_kept(value: Any, text: str) -> Any:
    """The value as a retry will see it: a tuple becomes a list, a Decimal a string. A difference shows at once."""
    return value if isinstance(value, models.Model) else decode(text)


def resource_of(what: models.Model | str, id_: str | int | UUID | None) -> Resource:
    """The type and the id to keep. Raises `IdempotencyConfigurationError` for what cannot be kept and found again."""
    if isinstance(what, models.Model):
        # An instance has its own id, once it is saved.
        id_ = None if id_ is not None or what.pk is None else str(what.pk)
        what = what._meta.label_lower
    text = str(id_) if isinstance(id_, str | int | UUID) and not isinstance(id_, bool) else ""
    typed = isinstance(what, str) and _fits(what, MAX_TYPE) and not any(c.isspace() for c in what)
    if not (typed and _fits(text, MAX_ID)):
        raise IdempotencyConfigurationError(
            f"refer_to({what!r:.200}, {id_!r:.300}): give a saved model instance alone, or a type of 1 to {MAX_TYPE} "
            f"characters without spaces and an id, a str, an int or a UUID of 1 to {MAX_ID} characters without control "
            "characters, as in refer_to('order', '59')."
        )
    return what, text


def _fits(text: str, width: int) -> bool:
    return 0 < len(text) <= width and not has_controls(text)
