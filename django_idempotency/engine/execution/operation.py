"""`Operation`: the named steps of one attempt in leased mode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, cast, overload

from asgiref.sync import sync_to_async
from django.db import Error, IntegrityError, transaction

from ...exceptions import ClaimLost, IdempotencyConfigurationError, ResultNotStorable, TransactionBroken
from ...models import IdempotencyStep
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimRequest, Resource
from ..stores import Store
from .bridge import NoBridgeAbove
from .durable import durable_transaction, reconnecting_once
from .handle import Handle
from .status_url import status_url_of
from .steps import checked_name, refuse_coroutine, synchronous
from .unhurried import finished
from .values import as_kept, decode, encode_step

Kind = IdempotencyStep.Kind
P = ParamSpec("P")
T = TypeVar("T")


class Operation(Handle):
    """One attempt at an operation: `request.idempotency` in the view. In atomic mode it has no steps.

    Args:
        key: the key that the client sent. None if the request has no key, or is not protected.
        attempt: 1 for the first run. Each retry that runs again has a higher number.
        request: what the view is called with. None without a client: in `run_once`, and in `recover_idempotency_keys`.
    """

    request: Any = None

    def __init__(self, store: Store, wanted: ClaimRequest, claim: Claimed) -> None:
        super().__init__(wanted.identity, claim.attempt, claim.resource)
        self._store = store
        self._journal = store.journal
        self._claim = claim
        self._lease = wanted.lease or 0
        # The steps of earlier attempts, whose workers cannot add to them any more, and those of `reconcile`.
        steps = store.journal.steps(claim) if claim.attempt > 1 else {}
        self._doubts = {name for name, (finished, _) in steps.items() if not finished}
        self._kept = {name: text for name, (finished, text) in steps.items() if finished}
        self._begin()
        self.writing = False
        self._broke: BaseException | None = None
        """What a `write` has raised."""

    def _begin(self) -> Operation:
        """The work begins, or begins again after `reconcile`: it may use each name, and gets what is recorded."""
        self._used: set[str] = set()
        self._unasked = {*self._doubts, *self._kept}
        """What is recorded, and the work has not asked for."""
        return self

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The names of calls that were started and have no result: they may or may not have happened."""
        return tuple(sorted(self._doubts))

    @property
    def status_url(self) -> str | None:
        """The path of this key's status page: one query. None without a key (`required=False`).

        For what must know the address before the answer: a row, a message, an answer that is not final.

        Raises:
            IdempotencyConfigurationError: the project's routes do not include the page.
        """
        return status_url_of(self._store.alias, self._claim)

    @property
    def results(self) -> dict[str, Any]:
        """The result of each finished step, of this attempt and of earlier ones, by the step's name.

        A model instance is fetched again: this asks the database, and raises its `DoesNotExist`.
        """
        self._unasked = set()
        return {name: decode(text) for name, text in self._kept.items()}

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
        refuse_coroutine(name, function, "acall")
        known, value = self._start(name)
        if known:
            return cast(T, value)
        try:
            value = function(*args, **kwargs)
            if isawaitable(value):
                raise IdempotencyConfigurationError(
                    f"step {name!r}: {function!r} returned {value!r}, which nobody awaits: the call may not have been "
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
        refuse_coroutine(name, function, "afetch")
        known, value = self._known_or_free(name)
        return cast(T, value if known else self._keep_fetched(name, function(*args, **kwargs)))

    def write(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Write to this database exactly once: `function`, the step's result and the fence commit together.

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
        refuse_coroutine(name, function, "awrite")
        known, value = self._known_or_free(name)
        if known:
            return cast(T, value)
        return cast(T, self._write(name, partial(function, *args, **kwargs)))

    def renew(self) -> None:
        """Start the lease again from now. For work that may take longer than `lease`.

        Raises:
            LeaseLost: another worker has taken the key over.
        """
        self._journal.renew(self._claim, self._lease)

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
        call = self._acall(name, function, *args, **kwargs)
        return await finished(call, at_most=self._lease)

    async def _acall(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        known, value = await sync_to_async(self._start)(name)
        if known:
            return value
        try:
            value = await _awaited(function, *args, **kwargs)
        except Exception as error:  # not a cancellation: nothing more is awaited then
            await sync_to_async(self._note)(name, error)
            raise
        return await sync_to_async(self._finish)(name, value)

    @overload
    async def afetch(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def afetch(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def afetch(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fetch` for `async def` views. `function` may be `def`, which runs in a thread, or `async def`."""
        known, value = await sync_to_async(self._known_or_free)(name)
        if known:
            return value
        value = await _awaited(function, *args, **kwargs)
        return await sync_to_async(self._keep_fetched)(name, value)

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

    async def astatus_url(self) -> str | None:
        """`status_url` for `async def` views."""
        return await sync_to_async(lambda: self.status_url)()

    # --- the two halves of a call ------------------------------------------------------------------------------

    def _start(self, name: str) -> tuple[bool, Any]:
        known, value = self._look_up(name)
        if not known:
            with durable_transaction(self._store, f"operation.call({name!r})"):
                self._journal.start_call(self._claim, name, again=name in self._doubts, keyed=name in self._keyed)
            self._doubts.add(name)
        return known, value

    def _finish(self, name: str, value: Any) -> Any:
        error = kept = None
        try:
            kept = encode_step(value)
        except ResultNotStorable as not_storable:
            error = not_storable  # the money has moved: keep that fact first

        def finish() -> None:
            with durable_transaction(self._store, f"the end of operation.call({name!r})"):
                self._journal.finish_call(self._claim, name, kept)

        reconnecting_once(self._store, finish)
        self._doubts.discard(name)
        self._kept[name] = kept
        if kept is None:
            raise error or RuntimeError(f"Bug: the result of {name!r} was lost.")
        return as_kept(value, kept)

    def _note(self, name: str, error: BaseException) -> None:
        """Keep the reason why the call is in doubt, for the timeline. The call is in doubt without the reason, too."""
        try:
            with durable_transaction(self._store, f"the end of operation.call({name!r})"):
                self._journal.note_error(self._claim, name, describe(error))
        except Exception:  # noqa: BLE001 (the call's own error is what the caller must see)
            return

    def _look_up(self, name: str) -> tuple[bool, Any]:
        """The result of an earlier attempt, if there is one."""
        self._use(name)
        return (True, decode(self._kept[name])) if name in self._kept else (False, None)

    def _known_or_free(self, name: str) -> tuple[bool, Any]:
        """The same, for a step that is no call: a call in doubt must not become one."""
        known, value = self._look_up(name)
        if name in self._doubts:
            raise IdempotencyConfigurationError(
                f"step {name!r} was started as an external call before, and has no result. Give this step another name."
            )
        return known, value

    # --- the other steps -----------------------------------------------------------------------------------------

    def _keep_fetched(self, name: str, value: Any) -> Any:
        kept = encode_step(value)
        # The server may have closed a connection that lay idle during a slow read.
        try:
            reconnecting_once(self._store, lambda: self._journal.keep_fetched(self._claim, name, kept))
        except IntegrityError:
            # Of two tries, the first may have been committed, and its answer lost.
            if self._store.connection.in_atomic_block or self._journal.steps(self._claim).get(name) != (True, kept):
                raise
        self._kept[name] = kept
        return as_kept(value, kept)

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        about = self._resource
        try:
            with durable_transaction(self._store, f"operation.write({name!r})"):
                self._journal.start_write(self._claim, name)
                with NoBridgeAbove(), self._writing(name):
                    value = function()
                    kept = encode_step(value)
                self._journal.finish_write(self._claim, name, kept)
        except BaseException as error:
            # The function's error, or that of the COMMIT: a constraint may be checked there.
            self._broke, self._resource = error, about
            # Its start is committed only if it has ended its own transaction. Then no 4xx may hide what it has written.
            with suppress(Error, ClaimLost):
                if name in self._journal.steps(self._claim):
                    self._doubts.add(name)
            raise
        self._kept[name] = kept
        return as_kept(value, kept)

    def _keep_resource(self, resource: Resource) -> None:
        self._journal.refer(self._claim, resource)

    def _use(self, name: str) -> None:
        if checked_name(name) in self._used:
            raise IdempotencyConfigurationError(
                f"step {name!r} was used twice in one attempt. Give each step of an operation a name of its own."
            )
        self._used.add(name)
        self._unasked.discard(name)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        self.writing, lost = True, False
        try:
            yield
        finally:
            self.writing = False
            if self._store.has_no_transaction(self._store.connection):
                # What the function has written since its transaction ended is committed: the step must be, too.
                with suppress(IntegrityError):  # it is, if the end was a COMMIT
                    self._journal.start_write(self._claim, name)
                    lost = True
        if lost:
            raise TransactionBroken(
                f"The function of operation.write({name!r}) lost its transaction in the middle: by a raw ROLLBACK, by "
                "a constraint or trigger that says ROLLBACK, or with its connection, which the driver has made anew. "
                "What it wrote before that is lost, and what it wrote after that is committed. So the step is in "
                "doubt until a person decides about it."
            )

    def _may_end_with(self, error: Exception) -> bool:
        """Whether the final answer that a framework gives to this exception of the work may be kept.

        Not if it may have come out of a call: it says nothing final, whichever its status. And not if it came out of a
        `write` that was rolled back after other steps: what they have done would be seen by nobody.
        """
        return not self._doubts and not (self._broke is error and self._kept)

    def _left_behind(self) -> str:
        """Why no answer of the work may complete the key, although it is final. Empty: it may.

        A call was made, and the work has answered as if nothing had happened: it caught the error of a `write`, or a
        condition of its own sent it away before it asked for what an earlier attempt has done. Completed, the charge
        without its order would be seen by nobody. Reads do not count, and `reconcile` may decide as it likes.
        """
        if self._broke is None and not self._unasked:
            return ""  # the usual end asks no database
        kinds = self._journal.kinds(self._claim)
        unasked = sorted(name for name in self._unasked if kinds.get(name) != Kind.FETCH)
        if Kind.CALL not in kinds.values():
            return ""
        if self._broke is not None:
            return f"A write raised after a call was made, and the work answered all the same: {describe(self._broke)}"
        if not unasked:
            return ""
        return (
            f"The work answered without asking for {', '.join(unasked)}, which an earlier attempt has recorded. Ask "
            "for the steps first: a condition of the view must not answer before them."
        )


class UnkeyedOperation(Operation):
    """Of a leased view without a key (`required=False`, or `ENABLED` is False): runs its steps and remembers nothing.

    `key` is None and `attempt` is 1. `derive_key` is stable within this request only.
    """

    status_url = None
    _lease = 0
    _keep_resource = Handle._keep_resource  # there is no key to keep it with

    def __init__(self, alias: str) -> None:
        Handle.__init__(self, None)
        self._alias = alias
        self._doubts, self._kept = set(), {}
        self._begin()

    def renew(self) -> None:
        pass

    def _start(self, name: str) -> tuple[bool, Any]:
        return self._look_up(name)

    def _finish(self, name: str, value: Any) -> Any:
        return value

    _keep_fetched = _finish

    def _note(self, name: str, error: BaseException) -> None:
        pass

    def _write(self, name: str, function: Callable[[], Any]) -> Any:
        with transaction.atomic(using=self._alias):
            return function()


async def _awaited(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function, or run another one in a thread. Either may return an awaitable."""
    if iscoroutinefunction(function):
        result = function(*args, **kwargs)
    else:
        result = await sync_to_async(function)(*args, **kwargs)
    return await result if isawaitable(result) else result
