"""Between the event loop and the thread of the database connection: `def` and `async def` in one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import update_wrapper
from inspect import isawaitable
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, async_to_sync, iscoroutinefunction, sync_to_async

T = TypeVar("T")


class NoBridgeAbove:
    """For work in a transaction: its `async_to_sync` finds no bridge above it.

    A task may outlive the work, such as one that `asyncio.gather` leaves behind at the first error. It gets a
    `RuntimeError` for its next query. asgiref would hand that query to the bridge above (Django's own, around an async
    view under WSGI, and around a sync middleware under ASGI), whose thread has the same connection. Our transaction has
    ended there, perhaps by a rollback, so the query would commit by itself, and the retry would write again.
    """

    def __enter__(self) -> None:
        bridges: Any = AsyncToSync.executors
        self._above = getattr(bridges, "current", None)
        if self._above is not None:
            bridges.current = None

    def __exit__(self, *raised: object) -> None:
        if self._above is not None:
            AsyncToSync.executors.current = self._above


def awaiting(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A form of the coroutine function for callers in a thread, as asgiref's `async_to_sync` makes it.

    One thing differs: see `NoBridgeAbove`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with NoBridgeAbove():
            return async_to_sync(function)(*args, **kwargs)

    return call


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """A form of `function` for callers that cannot await. It awaits awaitable results, such as `objects.acreate(…)`."""

    async def result_of(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    def plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return awaiting(result_of)(result) if isawaitable(result) else result

    plain.__wrapped__ = function  # type: ignore[attr-defined]  # its signature says whether it asks for the operation
    return plain


async def awaited(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function, or run another one in a thread. Either may return an awaitable."""
    if not iscoroutinefunction(function):
        function = sync_to_async(function)
    result = await function(*args, **kwargs)
    return await result if isawaitable(result) else result


async def in_thread(run: Callable[[Callable[..., Any]], T], work: Callable[..., Any]) -> T:
    """`run(work)` in the thread of the database connection, for a caller on the event loop: one hop.

    A coroutine function runs on the event loop all the same. Its own `sync_to_async` calls come back to that thread,
    and so into the transaction. If the caller is cancelled, the work is cancelled, and the exception rolls back.

    Args:
        run: called in the thread, with a form of `work` that does not have to be awaited.
        work: `def` or `async def`.
    """
    cancelled = False

    def refuse_if_cancelled() -> None:
        # A caller who was cancelled during the claim has no work yet to cancel, and the thread goes on.
        if cancelled:
            raise asyncio.CancelledError

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()
        return await work(*args, **kwargs)

    def form(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()  # here too: of a loop that has ended meanwhile, no coroutine may be left behind
        return (awaiting(awaited) if iscoroutinefunction(work) else work)(*args, **kwargs)

    try:
        return await sync_to_async(run)(update_wrapper(form, work))
    except asyncio.CancelledError:
        cancelled = True
        raise


async def finished(work: Coroutine[Any, Any, T], *, at_most: float) -> T:
    """Await `work`. If this task is cancelled meanwhile, let `work` end first, and then go on with the cancellation.

    A client that hangs up cancels its request. An external call that is under way would be cut off, and its outcome
    would be unknown, although the other side may answer a moment later. A second cancellation cuts the work off.

    Args:
        work: runs in a task of its own.
        at_most: seconds to wait after the cancellation. Then the work is cut off.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})  # unlike `await task`, it does not pass a cancellation on
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=at_most)
        finally:
            task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # asyncio complains about exceptions that were never looked at
        raise
    return task.result()
