"""The `Operation` handed to a view: one attempt at the view's work, with named steps.

`attempt.py` says what its steps mean, and `steps.py` says where they are stored.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, ParamSpec, TypeVar, cast, overload
from uuid import UUID, uuid4, uuid5

from asgiref.sync import sync_to_async
from django.db import models

from ...exceptions import IdempotencyConfigurationError
from ..conf import get_settings
from ..protocol.digests import Identity, derived_key
from ..protocol.outcomes import Resource
from .attempt import Attempt, check_name
from .bridge import synchronous, until_done
from .resources import resource_of
from .steps import ONE_TRANSACTION, CallInDoubt, Step, StepJournal

P = ParamSpec("P")
T = TypeVar("T")


class Operation(Attempt):
    """One attempt at the work, available to the view as `request.idempotency`. It has no steps in atomic mode.

    Args:
        key: the key that the client sent, or None if the request has no key or is not protected.
        attempt: 1 for the first run of the work, and higher for each later run.
        request: the view's request, or None in `run_once` and `recover_idempotency_keys`.
        resource: the type and id that `refer_to` stored, or None if it was never called.
    """

    _request: Callable[[], Any] | None = None
    _namespace: UUID | None = None

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

        After a restore, a charge's metadata must tell whose charge it is: include this name, `scope` and `key`.
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
        """Maps each name in `in_doubt` to the time when its call was started, so that `reconcile` knows its age.

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

    def derive_key(self, name: str) -> str:
        """Return a UUID to send as an external call's idempotency key: the same one for `name` in every attempt.

        This also holds while protection is off (`ENABLED`, `observe`), as long as the request carries a key. Without
        a key, a retry gets a different UUID, because nothing identifies it as a retry.
        """
        check_name(name)
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

        First, the start of the call is committed. Then `function` runs with no transaction open, and its result is
        committed. A later attempt gets the stored result instead of calling again.

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

        The result is stored after the read, within your transaction if one is open. Later attempts get the stored
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
