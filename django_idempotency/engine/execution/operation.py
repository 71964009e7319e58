"""`Operation` tells the view, or the function of `run_once`, about its attempt, and has methods for named steps.

Atomic mode has no steps. In leased mode, `leased.LeasedOperation` keeps the steps.
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
"""The largest numbers of characters. They are the widths of the database columns."""
MAX_STEP_BYTES = 1024 * 1024
"""The limit for the result of a step. A result is stored for all later attempts, and each attempt reads all results. A
result is meant to be a short receipt, such as the id of a charge."""
P = ParamSpec("P")
T = TypeVar("T")


class Operation:
    """One attempt at an operation: `request.idempotency` in the view. In atomic mode, an operation has no steps.

    Args:
        key: the key that the client sent, or None if the request has no key or is not protected.
        attempt: 1 for the first run. Each retry that runs again has a higher number.
        request: the view's request, or None in `run_once` and `recover_idempotency_keys`.
        resource: type and id that `refer_to` has stored, or None if `refer_to` was never called.
    """

    request: Any = None
    _lease: float = 0
    _namespace: UUID | None = None
    _keyed: frozenset[str] = frozenset()
    """The names of the steps for which the work has asked for a derived key."""
    _doubts: Set[str] = frozenset()
    _kept: Mapping[str, str | None] = {}
    """The results of the finished steps, of this attempt and of earlier attempts. `_doubts` has the names of the steps
    that were started and have no result.
    """

    def __init__(
        self, identity: Identity | None, attempt: int = 1, resource: Resource | None = None, steps_on: str | None = None
    ) -> None:
        """steps_on: the database alias of leased work that is not protected. The steps of this work run, but are not
        stored.
        """
        self.key: str | None = None if identity is None else identity.key
        self.attempt = attempt
        self._identity = identity
        self.resource = resource
        self._steps_on = steps_on
        if steps_on is not None:
            self._begin()

    def _begin(self) -> None:
        """Begin the work, or begin again after `reconcile`. The work can use each name again, and gets old results."""
        self._used: set[str] = set()
        self._unasked = {*self._doubts, *self._kept}
        """The names of the stored steps for which the work has not asked yet."""

    @property
    def reference(self) -> str | None:
        """The 16 hexadecimal digits that stand for the key in logs and in the admin, or None."""
        return None if self._identity is None else self._identity.reference

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The names of calls that were started and have no result. It is not known whether such a call happened."""
        return tuple(sorted(self._doubts))

    @property
    def results(self) -> dict[str, Any]:
        """A dict from step names to results, for each finished step of this and earlier attempts.

        A model instance is fetched again, so its `DoesNotExist` can be raised.
        """
        self._unasked = set()
        return {name: decode(text) for name, text in self._kept.items()}

    def derive_key(self, name: str) -> str:
        """A UUID as idempotency key for another service. Each name has its own UUID, the same in every attempt.

        An operation without a key cannot recognise a retry, so its UUID is stable in one request only.
        """
        _check(name)
        self._keyed |= {name}
        if self._identity is not None:
            return derived_key(self._identity, name)
        self._namespace = self._namespace or uuid4()
        return str(uuid5(self._namespace, name))

    def refer_to(self, what: models.Model | str, id_: str | int | UUID | None = None, /) -> None:
        """Store with the key what the operation is about. The admin, the search, events and logs show this reference.

        In atomic mode, the reference is stored together with the result and costs no statement. In leased mode, the
        reference costs one statement, under the fence. If you call this method in the function that you pass to
        `write`, the reference commits together with the write. A second call replaces the first reference.

        Args:
            what: a saved model instance, kept as its label ("shop.order") and primary key; or a type of 1 to 100
                characters without spaces.
            id_: the id, if `what` is a type: 1 to 255 characters, such as "59". An int or a UUID is kept as text.

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
        """Call another system: a payment gateway, a mail server, another service.

        Commits "started", runs `function` while no transaction is open, and commits the result. A later attempt gets
        this result, and does not call `function`. An exception of `function` propagates and leaves the call in doubt,
        because the outcome is unknown (a timeout, for example). For a clear refusal (a declined card), return a value.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`, as JSON gives it back.

        Raises:
            LeaseLost: before or after the call, if another worker has taken the key over.
            ResultNotStorable: after the call, if the result is not JSON, or longer than 1 MiB of JSON. The step is
                marked as done, without a value.
            IdempotencyConfigurationError: a name is used twice, or a transaction is open.
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
        """Read from another system without changing that system: an exchange rate, the price of a parcel.

        Runs `function`, then commits its result in one statement. Inside a transaction, the result commits with that
        transaction. A later attempt gets this result. An interrupted fetch leaves no trace, so a fetch is never in
        doubt, and a key with only fetches needs no attention.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`, as JSON gives it back.

        Raises:
            LeaseLost: after the call, if another worker has taken the key over.
            ResultNotStorable: the result is not JSON, or longer than 1 MiB of JSON. Nothing is kept.
            IdempotencyConfigurationError: a name is used twice.
        """
        _refuse_coroutine(name, function, "afetch")
        known, value = self._look_up(name)
        return cast(T, value if known else self._keep_fetched(name, function(*args, **kwargs)))

    def write(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Write to this database exactly once: the writes of `function` commit together with the step's result.

        Opens a transaction, locks the key's row, runs `function`, and commits. A later attempt gets the result, and
        does not call `function`.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`: JSON, or one model instance, which is kept by its primary key and fetched again.

        Raises:
            LeaseLost: another worker has taken the key over. Everything is rolled back.
            ResultNotStorable: the result is neither JSON nor a saved model instance, or longer than 1 MiB of JSON.
                Everything is rolled back.
            TransactionBroken: the database has rolled back the first writes of `function`, but `function` returned. The
                step is in doubt. If `function` has caught the error of a deadlock, nothing was committed.
            IdempotencyConfigurationError: a name is used twice, or a transaction is open.
        """
        _refuse_coroutine(name, function, "awrite")
        known, value = self._look_up(name)
        if known:
            return cast(T, value)
        return cast(T, self._write(name, partial(function, *args, **kwargs)))

    def renew(self) -> None:
        """Start the lease again from now. Use `renew` if work takes longer than `lease`.

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
        """`call` for `async def` views. `function` is `async def`, or `def`, which runs in a thread.

        A request that is cancelled waits until the call ends and keeps its result, but waits no longer than the
        lease. So give `function` a time limit.
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
        """`fetch` for `async def` views. `function` is `async def`, or `def`, which runs in a thread."""
        return await self._astep(self._look_up, self._keep_fetched, name, partial(function, *args, **kwargs))

    async def _astep(self, start: Any, finish: Any, name: str, function: Callable[[], Any]) -> Any:
        known, value = await sync_to_async(start)(name)
        if known:
            return value
        try:
            value = await awaited(function)
        except Exception as error:  # a cancellation is not caught, because a cancelled task should await nothing more
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
        """`write` for `async def` views. `function` is `def` or `async def`."""
        return await sync_to_async(self.write)(name, synchronous(function), *args, **kwargs)

    async def arenew(self) -> None:
        """`renew` for `async def` views."""
        await sync_to_async(self.renew)()

    # --- how the steps run if no database stores them

    def _look_up(self, name: str, *, for_call: bool = False) -> tuple[bool, Any]:
        """Mark the name as used. Return whether an earlier attempt has stored a result, and the result."""
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
        """Store the reason why a call is in doubt."""

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        with transaction.atomic(using=self._steps_on):
            return function()

    def _keep_resource(self, resource: Resource) -> None:
        """Store the resource now. This method does nothing without a key, or if the result will store the resource."""


class AtomicOperation(Operation):
    """The operation of a view, or of other work, without `lease`. Everything runs in one transaction, without steps.

    Each protected request makes one such object, so the constructor must be fast.
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
    """Work that must run once. It also decides which of its results are final."""

    def run(self, operation: Operation) -> Finished[T]:
        """Do the work. In atomic mode, the work runs inside the transaction of the claim.

        Args:
            operation: the operation of this attempt. Only leased work can use steps.

        Raises:
            Exception: an exception of the work. The writes of the work are rolled back.
        """

    def answer(self, error: Exception) -> Finished[T] | None:
        """Return the framework's answer to an exception of the work. The engine calls this method after the rollback.

        Returns:
            The judged answer, or None if `error` should propagate to the caller.
        """

    def reconcile(self, operation: Operation) -> Finished[T] | None:
        """Ask the project for the outcome of an abandoned attempt.

        Returns:
            The final result, or None to run the work again.
        """


def encode_step(value: Any) -> str:
    """Return the text to store for a step's result. Raises `ResultNotStorable` as `encode` does, or for a long text."""
    kept = encode(value)  # the text is ASCII, so each character is one byte
    if len(kept) > MAX_STEP_BYTES:
        raise ResultNotStorable(
            f"the result of a step takes {len(kept)} bytes as JSON, and {MAX_STEP_BYTES} are kept at most. Return what "
            "the next steps need, such as the id of the charge."
        )
    return kept


def encode(value: Any) -> str:
    """Return the text to store. Raises `ResultNotStorable` for a value that is neither JSON nor a saved instance."""
    if isinstance(value, models.Model):
        if value.pk is None or value._state.adding:
            raise ResultNotStorable(f"{value!r} has not been saved, so it cannot be fetched again. Return it saved.")
        kept: dict[str, Any] = {"model": value._meta.label, "pk": value.pk, "using": value._state.db}
    else:
        kept = {"value": value}
    try:
        # Python would write NaN and Infinity, but JSON does not have them.
        return json.dumps(kept, cls=DjangoJSONEncoder, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultNotStorable(
            f"{type(value).__qualname__} cannot be kept as JSON ({error}). "
            "Return JSON values (dict, list, str, int, …) or one saved model instance."
        ) from error


def decode(text: str | None) -> Any:
    """Return the stored value, or None. A model instance is fetched again, so its `DoesNotExist` may be raised."""
    if text is None:
        return None
    kept = json.loads(text)
    if "model" in kept:
        return apps.get_model(kept["model"])._base_manager.using(kept["using"]).get(pk=kept["pk"])
    return kept["value"]


def as_kept(value: Any, text: str) -> Any:
    """Return the value that a retry will get. For example, a tuple becomes a list, already in the first run."""
    return value if isinstance(value, models.Model) else decode(text)


def resource_of(what: models.Model | str, id_: str | int | UUID | None) -> Resource:
    """Return type and id. Raises `IdempotencyConfigurationError` for a type or id that cannot be stored and found."""
    if isinstance(what, models.Model):
        # A saved instance has its own id, so another id must not be given.
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
