"""A view gets an `Operation` object. The object describes one attempt, and has methods for named steps.

Atomic mode has no steps. In leased mode, the class `LeasedOperation` stores the steps and their results.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Set
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from types import SimpleNamespace
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID, uuid4, uuid5

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, transaction

from ...exceptions import IdempotencyConfigurationError, ResultLost, ResultNotStorable
from ..conf import get_settings
from ..protocol.digests import Identity, derived_key, has_controls
from ..protocol.outcomes import Finished, Resource
from .bridge import awaited, synchronous, until_done

MAX_NAME, MAX_TYPE, MAX_ID = 100, 100, 255
"""The largest numbers of characters. They are the widths of the database columns."""
MAX_STEP_BYTES = 1024 * 1024
"""The limit for the result of a step. A result is stored for all later attempts, and each attempt reads all results. A
result is meant to be a short receipt, such as the id of a charge."""
P = ParamSpec("P")
T = TypeVar("T")


class Operation:
    """An `Operation` object describes one attempt to do the work. The view gets this object as `request.idempotency`.
    In atomic mode, the work has no steps.

    Args:
        key: the key that the client sent, or None if the request has no key or is not protected.
        attempt: 1 for the first run of the work, and a higher number for each later run.
        request: the view's request, or None in `run_once` and `recover_idempotency_keys`.
        resource: type and id that `refer_to` has stored, or None if `refer_to` was never called.
    """

    request: Any = None
    _lease: float = 0
    _namespace: UUID | None = None
    _derives_from: Identity | None = None
    """The caller's key of work that runs while the protection is off: a gateway still recognizes its retry."""
    _keyed: frozenset[str] = frozenset()
    """The names of the steps for which the work has asked for a derived key."""
    _doubts: Set[str] = frozenset()
    """The names of the steps that were started and have no result, in this attempt or in earlier ones."""
    _kept: Mapping[str, str | None] = {}
    """The results of the finished steps. None is a value that was lost."""
    _reconciling = False
    """Whether `reconcile` runs, and not the work."""

    def __init__(
        self, identity: Identity | None, attempt: int = 1, resource: Resource | None = None, steps_on: str | None = None
    ) -> None:
        """Create the operation. For leased work, `steps_on` is the alias of the database for `write` steps. If work in
        leased mode runs without a key, the steps run, but their results are not stored.
        """
        self.key: str | None = None if identity is None else identity.key
        self.attempt = attempt
        self._identity = identity
        self.resource = resource
        self._steps_on = steps_on
        if steps_on is not None:
            self._begin()

    def _begin(self) -> None:
        """Prepare the next run of the work or of the function `reconcile`. Each run can read all stored results, uses
        each step name only once, and asks for its own derived keys.
        """
        self._used: set[str] = set()
        self._keyed = frozenset()
        self._unasked = {*self._doubts, *self._kept}
        """The names of the stored steps for which the work has not asked yet."""

    @property
    def reference(self) -> str | None:
        """Return 16 hexadecimal digits that logs and the admin show instead of the key. Without a key, return None."""
        return None if self._identity is None else self._identity.reference

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """Return the names of calls that were started but have no result, so their outcome is unknown."""
        return tuple(sorted(self._doubts))

    @property
    def results(self) -> dict[str, Any]:
        """Return the name and the result of each finished step. Steps of earlier attempts are included.

        A call whose value was lost is left out: see `lost`. A model instance is read from the database, and raises
        `DoesNotExist` if its row is missing.
        """
        self._unasked = set()
        return {name: decode(text) for name, text in self._kept.items() if text is not None}

    @property
    def lost(self) -> tuple[str, ...]:
        """Return the names of calls that took effect, and whose value could not be stored.

        `reconcile` can enter the value: `operation.call(name, look_up)` stores what `look_up` returns.
        """
        return tuple(sorted(name for name, text in self._kept.items() if text is None))

    def derive_key(self, name: str) -> str:
        """Return a UUID as the idempotency key of an external call. Every attempt gets the same UUID for the same name.

        That is so while the protection is off, too (`ENABLED`, `observe`), as long as the request has a key. If it has
        none, a retry gets a different UUID, because the package cannot recognise the retry.
        """
        _check(name)
        self._keyed |= {name}
        if (identity := self._identity or self._derives_from) is not None:
            return derived_key(identity, name, get_settings().namespace)
        self._namespace = self._namespace or uuid4()
        return str(uuid5(self._namespace, name))

    def refer_to(self, what: models.Model | str, id_: str | int | UUID | None = None, /) -> None:
        """Store a reference to the object that the key is about, such as an order.

        The admin, the events and the logs show this reference. The admin can also find the key by this reference. In
        atomic mode, the reference is stored together with the result, without an extra SQL statement. In leased mode,
        one more SQL statement checks the fence and stores the reference. If the reference must commit together with a
        `write` step, call `refer_to` inside the function of this step. If you call `refer_to` twice, the second
        reference replaces the first reference.

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
        """Do the same as `refer_to`, but for `async def` views."""
        await sync_to_async(self.refer_to)(what, id_)

    def call(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call another system, such as a payment gateway or a mail server.

        This method first commits the start of the call. Then the method runs the function outside of any transaction,
        and commits the result. A later attempt gets the stored result and does not run the function again. If the
        function raises an exception, such as a timeout, the call is in doubt, because its outcome is unknown. Your code
        gets this exception, too. If the other system refuses, for example if a card is declined, the function should
        return a value and raise no exception.

        Args:
            name: the step's name, 1 to 100 characters, the same in every attempt.
            function: called with the other arguments.

        Returns:
            The result of `function`, as JSON gives it back.

        Raises:
            LeaseLost: before or after the call, if another worker has taken the key over.
            OutcomeUnknown: before the call, if an earlier attempt started it and `on_abandoned="retry-keyed"` forbids
                another start: ask for `derive_key` before the call in each attempt.
            ResultNotStorable: after the call, if the result is not JSON, or longer than 1 MiB of JSON. The step is
                marked as done, and its value is lost.
            ResultLost: in a later attempt, if the value of this call was lost. The call is not repeated.
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
        """Read a value, such as an exchange rate, from another system. The function must not change the other system.

        This method runs the function, and then stores the result with one SQL statement. If a transaction is open, the
        result commits with that transaction. A later attempt gets the stored result. If a fetch is interrupted, nothing
        is stored, so the retry simply repeats the fetch. If all steps of a key are fetches, the key needs no attention.

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
        """Run a function in a transaction. The writes and the result of the function commit together, exactly once.

        This method opens a transaction in the key's database, locks the key's row, runs the function, and commits. A
        later attempt gets the stored result and does not run the function again.

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
        """Extend the lease to its full length. Use this method if the work takes longer than the lease.

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
        """Do the same as `call`, but for `async def` views. The argument `function` is an `async def` or `def`
        function. A `def` function runs in a thread.

        If the request is cancelled, this method waits until the function ends, and stores the result. The method stops
        waiting for the function when the lease ends, so set a time limit inside the function.
        """
        call = self._astep(self._start, self._finish, name, partial(function, *args, **kwargs))
        return await until_done(call, at_most=self._lease)

    @overload
    async def afetch(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def afetch(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def afetch(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do the same as `fetch`, but for `async def` views. The argument `function` is an `async def` or `def`
        function. A `def` function runs in a thread.
        """
        return await self._astep(self._look_up, self._keep_fetched, name, partial(function, *args, **kwargs))

    async def _astep(self, start: Any, finish: Any, name: str, function: Callable[[], Any]) -> Any:
        known, value = await sync_to_async(start)(name)
        if known:
            return value
        try:
            value = await awaited(function)
        except Exception as error:  # a cancelled task must not start a query, so CancelledError is not caught
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
        """Do the same as `write`, but for `async def` views. The argument `function` is an `async def` or `def`
        function.
        """
        return await sync_to_async(self.write)(name, synchronous(function), *args, **kwargs)

    async def arenew(self) -> None:
        """Do the same as `renew`, but for `async def` views."""
        await sync_to_async(self.renew)()

    # --- steps without storage

    def _look_up(self, name: str, *, for_call: bool = False) -> tuple[bool, Any]:
        """Mark the step name as used. Return `(True, result)` if the step has a stored result, else `(False, None)`."""
        _check(name)
        if name in self._used:
            raise IdempotencyConfigurationError(
                f"step {name!r} was used twice in one attempt. Give each step of an operation a name of its own."
            )
        lost = name in self._kept and self._kept[name] is None
        if (lost or name in self._doubts) and not for_call:
            raise IdempotencyConfigurationError(
                f"step {name!r} was started as an external call before, and has no result. Give this step another name."
            )
        if lost and not self._reconciling:
            raise ResultLost(
                f"The call {name!r} took effect, and its value was lost, because it could not be stored as JSON. The "
                "call is not repeated. Enter the value with record_outcome, in the admin or in `reconcile`, and let "
                "the step's function return a dict: to_dict(), model_dump(mode='json')."
            )
        self._used.add(name)
        self._unasked.discard(name)
        return (True, decode(self._kept[name])) if name in self._kept and not lost else (False, None)

    def _start(self, name: str) -> tuple[bool, Any]:
        return self._look_up(name, for_call=True)

    def _finish(self, name: str, value: Any) -> Any:
        return value

    _keep_fetched = _finish

    def _note(self, name: str, error: BaseException) -> None:
        """Store the error of a call, as the reason why the call is in doubt."""

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        with transaction.atomic(using=self._steps_on):
            return function()

    def _keep_resource(self, resource: Resource) -> None:
        """In leased mode, store the resource immediately when the work calls `refer_to`. In atomic mode, do nothing,
        because the resource is stored together with the result. If the operation has no key, do nothing, too.
        """


class AtomicOperation(Operation):
    """If the option `lease` is not set, the work gets an object of this class. The work runs in one transaction and has
    no steps.

    Each protected request in atomic mode creates an `AtomicOperation`, so the constructor must be fast.
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
    """This interface describes work that must run once. The work itself says which of its results are final."""

    def run(self, operation: Operation) -> Finished[T]:
        """Do the work. In atomic mode, the work runs inside the transaction that claims the key.

        Args:
            operation: the operation of this attempt. Only leased work can use steps.

        Raises:
            Exception: an exception of the work. The writes of the work are rolled back.
        """

    def answer(self, error: Exception) -> Finished[T] | None:
        """If the work raises an exception, return the framework's response for this exception. The engine calls this
        method after the rollback.

        Returns:
            The judged answer, or None if `error` should propagate to the caller.
        """

    def reconcile(self, operation: Operation) -> Finished[T] | None:
        """Call the project's function `reconcile`, which returns the outcome of an abandoned attempt.

        Returns:
            The final result, or None to run the work again.
        """


def encode_step(value: Any) -> str:
    """Return the JSON text that is stored for the result of a step. The result must be a JSON value or a saved model
    instance. This function raises `ResultNotStorable` if the type of the result is not allowed, or if the JSON text of
    the result is longer than 1 MiB.
    """
    kept = encode(value)  # the JSON text is ASCII, so its length is also its number of bytes
    if len(kept) > MAX_STEP_BYTES:
        raise ResultNotStorable(
            f"the result of a step takes {len(kept)} bytes as JSON, and {MAX_STEP_BYTES} are kept at most. Return what "
            "the next steps need, such as the id of the charge."
        )
    return kept


def encode(value: Any) -> str:
    """Return the JSON text that is stored for a value. The value must be a JSON value or a saved model instance. Every
    other value raises `ResultNotStorable`.
    """
    kept: dict[str, Any] = {"value": value}
    try:
        if isinstance(value, models.Model):
            kept = {"model": value._meta.label, "pk": _encode_pk(value), "using": value._state.db}
        # By default, Python writes NaN and Infinity, but JSON does not have these values.
        return json.dumps(kept, cls=DjangoJSONEncoder, allow_nan=False)
    except Exception as error:  # a project's fields may raise anything, and what has moved money must be marked as done
        raise ResultNotStorable(
            f"{type(value).__qualname__} cannot be kept as JSON ({error}). "
            "Return JSON values (dict, list, str, int, …), such as an SDK object's to_dict() or "
            "model_dump(mode='json'), or one saved model instance."
        ) from error


def _encode_pk(instance: models.Model) -> Any:
    """Return what Django's serializers write for each field of the key. JSON alone cuts the microseconds of a time."""
    field: Any
    parts: list[Any] = []
    for field in instance._meta.pk_fields:
        part = getattr(instance, field.attname)
        if part is None or instance._state.adding or hasattr(part, "resolve_expression"):
            raise ValueError(f"{instance!r} has not been saved, or was deleted, so it cannot be fetched again")
        while field.remote_field:
            field = field.target_field
        if not isinstance(part, str | int):
            part = field.value_to_string(SimpleNamespace(**{field.attname: field.to_python(part)}))
        parts.append(part)
    return parts if instance._meta.is_composite_pk else parts[0]


def decode(text: str | None) -> Any:
    """The value is stored as a JSON text. Decode this text, and return the value. If the text is None, return None. If
    the text describes a model instance, this function reads the instance from the database. If the row is missing,
    Django raises `DoesNotExist`.
    """
    if text is None:
        return None
    kept = json.loads(text)
    if "model" not in kept:
        return kept["value"]
    model = apps.get_model(kept["model"])
    parts = kept["pk"] if model._meta.is_composite_pk else [kept["pk"]]
    pk = tuple(field.to_python(part) for field, part in zip(model._meta.pk_fields, parts, strict=True))
    return model._base_manager.using(kept["using"]).get(pk=pk if model._meta.is_composite_pk else pk[0])


def as_kept(value: Any, text: str) -> Any:
    """Return the value that each retry will read from the stored text. For example, if a function returns a tuple, the
    first run and each retry get a list, because JSON has no tuples.
    """
    return value if isinstance(value, models.Model) else decode(text)


def resource_of(what: models.Model | str, id_: str | int | UUID | None) -> Resource:
    """Return the type and the id of a resource. Raises `IdempotencyConfigurationError` if the type or the id is not
    valid, for example too long.
    """
    if isinstance(what, models.Model):
        # The id of an instance is its primary key. So the argument `id_` must be None, or this function raises an
        # error.
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
