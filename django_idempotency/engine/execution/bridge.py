"""These functions connect `def` and `async def` code. Queries run in the thread of the database connection, and `async
def` functions run on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import update_wrapper
from inspect import isawaitable
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, async_to_sync, iscoroutinefunction, sync_to_async

T = TypeVar("T")


class NoBridgeAbove:
    """While work runs in a transaction, this context manager hides an outer call of `async_to_sync` from asgiref.

    An asyncio task that the work has started can run longer than the work itself. For example, `asyncio.gather` does
    not stop its other tasks when one task fails. With this context manager, the next query of such a task raises a
    `RuntimeError`. Without the context manager, asgiref would run the query in the thread of the outer `async_to_sync`
    call. Django makes such an outer call around an async view under WSGI, and around a sync middleware under ASGI. In
    the thread of the outer call, the query would use our database connection. But our transaction has already ended
    with a COMMIT or a ROLLBACK. So the database would commit the query of the task separately. After a ROLLBACK, a
    retry would write the same data again.
    """

    def __enter__(self) -> None:
        bridges: Any = AsyncToSync.executors
        try:
            self._above = bridges.current
        except AttributeError:  # without the attribute `current`, asgiref is slow in this thread
            self._above = None
            bridges.current = None
        if self._above is not None:
            bridges.current = None

    def __exit__(self, *raised: object) -> None:
        if self._above is not None:
            AsyncToSync.executors.current = self._above


def awaiting(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Return a plain function that runs the coroutine function `function`, as asgiref's `async_to_sync` does.

    In addition, this plain function uses the context manager `NoBridgeAbove`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with NoBridgeAbove():
            return async_to_sync(function)(*args, **kwargs)

    return call


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function that calls `function`. If `function` returns an awaitable, the plain function waits for
    the result of the awaitable.
    """

    async def result_of(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    def plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return awaiting(result_of)(result) if isawaitable(result) else result

    # With `__wrapped__`, `inspect.signature` shows whether `function` has the parameter `operation`.
    plain.__wrapped__ = function  # type: ignore[attr-defined]
    return plain


async def awaited(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function`, and return its result. A coroutine function is awaited, and a plain function runs in a thread.
    If a plain function returns an awaitable, the awaitable is also awaited.
    """
    if not iscoroutinefunction(function):
        function = sync_to_async(function)
    result = await function(*args, **kwargs)
    return await result if isawaitable(result) else result


async def in_thread(run: Callable[[Callable[..., Any]], T], work: Callable[..., Any]) -> T:
    """Call `run(work)` in the thread of the database connection, and await the result of `run` on the event loop.

    If `work` is a coroutine function, `work` runs on the event loop. But if `work` calls a function with
    `sync_to_async`, this function runs in the thread of the connection. So the queries of this function are part of the
    transaction. If the caller is cancelled, `work` is also cancelled, and `CancelledError` rolls the transaction back.

    Args:
        run: this function is called in the thread. Its argument is a plain function that runs `work`.
        work: a `def` or `async def` function.
    """
    cancelled = False

    def refuse_if_cancelled() -> None:
        # If the caller is cancelled, the thread continues to claim the key. After the claim, this check raises an
        # error, so that the work does not start.
        if cancelled:
            raise asyncio.CancelledError

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()
        return await work(*args, **kwargs)

    def form(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()  # after the end of the event loop, no code would await a new coroutine
        return (awaiting(awaited) if iscoroutinefunction(work) else work)(*args, **kwargs)

    try:
        return await sync_to_async(run)(update_wrapper(form, work))
    except asyncio.CancelledError:
        cancelled = True
        raise


async def finished(work: Coroutine[Any, Any, T], *, at_most: float) -> T:
    """Await `work`. If the current task is cancelled, wait for the end of `work`, and then raise `CancelledError`.

    When a client closes its connection, the server cancels the request. At this moment, an external call can still be
    running. If this function did not wait for the call, the outcome of the call would be unknown. A second cancellation
    of the task stops `work`.

    Args:
        work: a coroutine, which runs in a task of its own.
        at_most: the seconds to wait after the cancellation. Then the work is stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})  # the cancellation of `asyncio.wait` does not cancel the task
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=at_most)
        finally:
            task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # asyncio logs an error if no code reads the exception of a task
        raise
    return task.result()
