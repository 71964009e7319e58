"""The `Operation` handed to a view: one attempt at the view's work, with named steps in leased mode.

`LeasedOperation` stores the steps and their results; atomic mode has no steps.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from types import SimpleNamespace
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID, uuid4, uuid5

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, transaction

from ...exceptions import IdempotencyConfigurationError, ResultLost, ResultNotStorable
from ...limits import is_limit
from ..conf import get_settings
from ..protocol.digests import Identity, derived_key, has_controls
from ..protocol.outcomes import Finished, Resource
from .bridge import awaited, synchronous, until_done

MAX_NAME, MAX_TYPE, MAX_ID = 100, 100, 255
"""The widths of the database columns, in characters."""
MAX_STEP_BYTES = 1024 * 1024
"""The size limit for a step's result. A result is meant to be a short receipt, such as the id of a charge, because
every later attempt reads all of its key's results."""
_INSIDE: ContextVar[tuple[Any, str]] = ContextVar("inside", default=(None, ""))
"""The operation and the name of the `call` or `fetch` whose function is running."""
P = ParamSpec("P")
T = TypeVar("T")


class Operation:
    """One attempt at the work. The view finds it in `request.idempotency`. In atomic mode, it has no steps.

    Args:
        key: the key that the client sent, or None if the request has no key or is not protected.
        attempt: 1 for the first run of the work, and higher for each later run.
        request: the view's request, or None in `run_once` and `recover_idempotency_keys`.
        resource: the type and id that `refer_to` stored, or None if it was never called.
    """

    request: Any = None
    _lease: float = 0
    _namespace: UUID | None = None
    _derives_from: Identity | None = None
    """The caller's key while protection is off, so that a gateway still recognizes a retry."""
    _keyed: frozenset[str] = frozenset()
    """The steps for which the work has requested a derived key."""
    _doubts: Set[str] = frozenset()
    """The steps that this attempt or an earlier one started and that have no result."""
    _kept: Mapping[str, str | None] = {}
    """The results of finished steps. None stands for a value that was lost."""
    _reconciling = False
    """Whether `reconcile`, rather than the work, is running."""

    def __init__(
        self, identity: Identity | None, attempt: int = 1, resource: Resource | None = None, steps_on: str | None = None
    ) -> None:
        """Create the operation. For leased work, `steps_on` is the alias on which its `write` steps run.

        Without a key, the steps run but are not stored.
        """
        self.key: str | None = None if identity is None else identity.key
        self.attempt = attempt
        self._identity = identity
        self.resource = resource
        self._steps_on = steps_on
        if steps_on is not None:
            self._begin()

    def _begin(self) -> None:
        """Prepare a run of the work or of `reconcile`.

        Each run may read all stored results, and may use each step name once. It must request derived keys again.
        """
        self._used: set[str] = set()
        self._pending: set[str] = set()
        """The steps that this run has asked for, and whose result it has not received."""
        self._keyed = frozenset()
        self._unasked = {*self._doubts, *self._kept}
        """The stored steps that this run has not asked for yet."""

    @property
    def scope(self) -> str | None:
        """The caller's scope as the key's row stores it, or None if there is no key.

        Every function of `django_idempotency.maintenance` that takes a scope accepts it.
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
        return tuple(sorted(self._doubts))

    @property
    def results(self) -> dict[str, Any]:
        """The results of all finished steps by name, including those of earlier attempts.

        Calls whose value was lost are left out: see `lost`. A model instance is read from the database; if its row is
        gone, `DoesNotExist` is raised.
        """
        self._unasked = set()
        if self._steps_on is not None:
            self._pending.difference_update(self._kept)
        return {name: decode(text) for name, text in self._kept.items() if text is not None}

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of calls that took effect but whose values could not be stored.

        `reconcile` can record the value: `operation.call(name, look_up)` stores what `look_up` returns.
        """
        return tuple(sorted(name for name, text in self._kept.items() if text is None))

    def derive_key(self, name: str) -> str:
        """Return a UUID to send as an external call's idempotency key: the same one for `name` in every attempt.

        This also holds while protection is off (`ENABLED`, `observe`), as long as the request carries a key. Without
        one, a retry gets a different UUID, because nothing identifies it as a retry.
        """
        _check(name)
        self._keyed |= {name}
        if (identity := self._identity or self._derives_from) is not None:
            return derived_key(identity, name, get_settings().namespace)
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
        self._keep_resource(resource)
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
        _refuse_coroutine(name, function, "acall")
        known, value = self._start(name)
        if known:
            return cast(T, self._received(name, value))
        try:
            value = self._within(name, partial(function, *args, **kwargs))
            if isawaitable(value):
                raise IdempotencyConfigurationError(
                    f"step {name!r}: {function!r} returned {value!r}, which no code awaits: the call may not have been "
                    f"made. Write `await operation.acall({name!r}, …)`."
                )
        except BaseException as error:
            self._note(name, error)
            raise
        return cast(T, self._received(name, self._finish(name, value)))

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
        _refuse_coroutine(name, function, "afetch")
        known, value = self._look_up(name)
        if not known:
            value = self._keep_fetched(name, self._within(name, partial(function, *args, **kwargs)))
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
        _refuse_coroutine(name, function, "awrite")
        return cast(T, self._received(name, self._written(name, partial(function, *args, **kwargs))))

    def renew(self) -> None:
        """Restart the lease at its full length, for work that takes longer than one lease.

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
        """`call` for `async def` views. A `def` function runs in a thread.

        If the request is cancelled, this still waits up to the length of a lease for `function` to return, and stores
        its result. Give the call itself a time limit.
        """
        call = self._astep(self._start, self._finish, name, partial(function, *args, **kwargs))
        return self._received(name, await until_done(call, at_most=self._lease))

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
        known, value = await sync_to_async(start)(name)
        if known:
            return value
        try:
            value = await self._awithin(name, function)
        except Exception as error:  # not CancelledError: a cancelled task must not start a query
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
        """`write` for `async def` views. `function` may be a `def` or an `async def` function."""
        write = partial(self._written, name, partial(synchronous(function), *args, **kwargs))
        return self._received(name, await sync_to_async(write)())

    async def arenew(self) -> None:
        """`renew` for `async def` views."""
        await sync_to_async(self.renew)()

    # --- steps without storage

    def _received(self, name: str, value: Any) -> Any:
        """Note that the work now has the step's result.

        A time limit around `acall` or `awrite`, or an exception from a signal, can take the result away from the work
        after it was stored.
        """
        self._pending.discard(name)
        return value

    def _within(self, name: str, function: Callable[[], Any]) -> Any:
        """Call a step's function. Wherever a signal handler raises an exception, the mark of the step is taken away."""
        outer = _INSIDE.get()
        try:
            try:
                _INSIDE.set((self, name))
                return function()
            finally:
                _INSIDE.set(outer)
        finally:  # again, in case that the exception has struck before that
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

    def _written(self, name: str, function: Callable[[], Any]) -> Any:
        known, value = self._look_up(name)
        return value if known else self._write(name, function)

    def _look_up(self, name: str, *, for_call: bool = False) -> tuple[bool, Any]:
        """Mark the step name as used. Return `(True, result)` if a result is stored, otherwise `(False, None)`."""
        _check(name)
        operation, outer = _INSIDE.get()
        if operation is self:
            raise IdempotencyConfigurationError(
                f"step {name!r} was started inside the function of step {outer!r}. A retry that finds the result of "
                f"{outer!r} would not reach it. Start it before or after."
            )
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
        self._pending.add(name)
        self._unasked.discard(name)
        if name not in self._kept or lost:
            return False, None
        try:
            return True, decode(self._kept[name])
        except ObjectDoesNotExist:
            self._pending.discard(name)  # the work is told that its row is gone
            raise

    def _start(self, name: str) -> tuple[bool, Any]:
        return self._look_up(name, for_call=True)

    def _finish(self, name: str, value: Any) -> Any:
        return value

    _keep_fetched = _finish

    def _note(self, name: str, error: BaseException) -> None:
        """Keep a call's error as the reason why the call is in doubt."""

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        with transaction.atomic(using=self._steps_on):
            return function()

    def _keep_resource(self, resource: Resource) -> None:
        """Store the resource immediately. Atomic mode stores it with the result; without a key, it is not stored."""


class AtomicOperation(Operation):
    """The `Operation` for work without a `lease`: it runs in one transaction and has no steps.

    Every atomic request creates one, so its constructor must stay fast.
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
            f"{name!r} is not a valid step name: pass a str of 1 to {MAX_NAME} characters, the same in every attempt."
        )


def _refuse_coroutine(name: str, function: Any, instead: str) -> None:
    if iscoroutinefunction(function):
        raise IdempotencyConfigurationError(
            f"step {name!r}: {function!r} is a coroutine function. Write `await operation.{instead}({name!r}, …)`."
        )


class Work(Protocol[T]):
    """Work that runs once, and that decides which of its results are final."""

    def run(self, operation: Operation) -> Finished[T]:
        """Do the work; in atomic mode, it runs inside the claim's transaction. Only leased work can use steps.

        Raises:
            Exception: whatever the work raises. The work's writes are rolled back.
        """

    def answer(self, error: Exception) -> Finished[T] | None:
        """Return the framework's response to the exception that the work raised, or None to let it propagate.

        Called after the rollback.
        """

    def reconcile(self, operation: Operation) -> Finished[T] | None:
        """Ask the project's `reconcile` for the final result of an abandoned attempt.

        If it returns None, the work runs again.
        """


def encode_step(value: Any) -> str:
    """Encode a step's result for storage.

    Raises:
        ResultNotStorable: the value is neither JSON nor a saved model instance, or takes more than 1 MiB.
    """
    kept = encode(value)  # ASCII, so characters are bytes
    if len(kept) > MAX_STEP_BYTES:
        raise ResultNotStorable(
            f"the result of a step takes {len(kept)} bytes as JSON, and at most {MAX_STEP_BYTES} can be kept. Return "
            "what the next steps need, such as the id of the charge."
        )
    return kept


def encode(value: Any) -> str:
    """Encode a JSON value or a saved model instance for storage. Raises `ResultNotStorable` for anything else.

    A limit that strikes meanwhile is raised as itself. A field may raise any exception, so an error that doesn't occur
    a second time is not the value's, either.
    """
    try:
        return _encode(value)
    except Exception as error:
        if is_limit(error):
            raise
        struck = error
    try:
        if isinstance(struck, RecursionError):
            with ThreadPoolExecutor(1) as thread:  # whose stack is empty
                thread.submit(_encode, value).result()
        else:
            _encode(value)
    except Exception as error:
        raise ResultNotStorable(
            f"{type(value).__qualname__} cannot be kept as JSON ({error}). "
            "Return JSON values (dict, list, str, int, …), such as an SDK object's to_dict() or "
            "model_dump(mode='json'), or one saved model instance."
        ) from error
    raise struck


def _encode(value: Any) -> str:
    kept: dict[str, Any] = {"value": value}
    if isinstance(value, models.Model):
        kept = {"model": value._meta.label, "pk": _encode_pk(value), "using": value._state.db}
    # Python would write NaN and Infinity, which are not valid JSON.
    return json.dumps(kept, cls=DjangoJSONEncoder, allow_nan=False)


def encode_returned(value: Any) -> tuple[str | None, BaseException | None]:
    """Encode what a call has returned.

    Returns:
        The text, or None if the value is lost; and what to raise once it is stored: why the value is lost, or what
        struck while it was encoded. Only an error of the encoding loses a value, because the call has returned.
    """
    struck: BaseException | None = None
    for _ in range(3):  # Ctrl-C is often pressed twice
        try:
            return encode_step(value), struck
        except ResultNotStorable as error:
            return None, error
        except BaseException as error:  # noqa: BLE001 (raised later)
            struck = error
    raise cast(BaseException, struck)


def _encode_pk(instance: models.Model) -> Any:
    """Encode each field as Django's serializers would. Plain JSON would truncate a time's microseconds."""
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
    """Return the stored value. A model instance is fetched; if its row is gone, `DoesNotExist` is raised."""
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
    """Return the value as every retry will read it. A tuple, for example, becomes a list."""
    return value if isinstance(value, models.Model) else decode(text)


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
