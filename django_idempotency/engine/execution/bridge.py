"""The bridge between the event loop and the thread of the database connection, for `def` and `async def` functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import update_wrapper
from inspect import isawaitable
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, async_to_sync, iscoroutinefunction, sync_to_async

T = TypeVar("T")


class NoBridgeAbove:
    """A context for work in a transaction: an `async_to_sync` of the work does not see an outer `async_to_sync` call.

    Sometimes a task lives longer than the work. For example, `asyncio.gather` leaves tasks behind at the first error.
    With this context, the next query of this task raises a `RuntimeError`. Without this context, asgiref would hand the
    query to the thread of the outer call. Django makes such an outer call around an async view under WSGI, and around a
    sync middleware under ASGI. In the thread of the outer call, the query would use our connection after the end of our
    transaction, perhaps after a rollback. So the query of the task would commit by itself, and the retry would write
    again.
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
    """Turn a coroutine function into a plain function for callers in a thread, as asgiref's `async_to_sync` does.

    The only difference to `async_to_sync` is the context `NoBridgeAbove`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with NoBridgeAbove():
            return async_to_sync(function)(*args, **kwargs)

    return call


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function that calls `function`, and also waits for its result if the result is awaitable."""

    async def result_of(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    def plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return awaiting(result_of)(result) if isawaitable(result) else result

    plain.__wrapped__ = function  # type: ignore[attr-defined]  # the signature tells whether it needs `operation`
    return plain


async def awaited(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function, or run a plain function in a thread. An awaitable result is awaited, too."""
    if not iscoroutinefunction(function):
        function = sync_to_async(function)
    result = await function(*args, **kwargs)
    return await result if isawaitable(result) else result


async def in_thread(run: Callable[[Callable[..., Any]], T], work: Callable[..., Any]) -> T:
    """Run `run(work)` in the thread of the database connection, and await the result on the event loop.

    A coroutine function `work` still runs on the event loop. Its own `sync_to_async` calls run in the thread of the
    connection, and so inside the transaction. If the caller is cancelled, the work is cancelled too, and the exception
    rolls the transaction back.

    Args:
        run: this function is called in the thread. Its argument is a plain function that runs `work`.
        work: a `def` or `async def` function.
    """
    cancelled = False

    def refuse_if_cancelled() -> None:
        # If the caller was cancelled during the claim, there was no work to cancel yet, and the thread goes on.
        if cancelled:
            raise asyncio.CancelledError

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()
        return await work(*args, **kwargs)

    def form(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()  # if the event loop has ended, a new coroutine would never be awaited
        return (awaiting(awaited) if iscoroutinefunction(work) else work)(*args, **kwargs)

    try:
        return await sync_to_async(run)(update_wrapper(form, work))
    except asyncio.CancelledError:
        cancelled = True
        raise


async def finished(work: Coroutine[Any, Any, T], *, at_most: float) -> T:
    """Await `work`. If this task is cancelled meanwhile, wait for the end of `work`, and then raise the cancellation.

    When a client closes its connection, the server cancels the request. If the cancellation stopped a running external
    call, the outcome of the call would be unknown, although the other side would perhaps answer a moment later. But a
    second cancellation stops the work.

    Args:
        work: a coroutine, which runs in a task of its own.
        at_most: the seconds to wait after the cancellation. Then the work is stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})  # a cancellation of `wait` does not cancel the task
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=at_most)
        finally:
            task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # asyncio warns about an exception that no code has read
        raise
    return task.result()
