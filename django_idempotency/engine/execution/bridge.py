"""With the functions of this module, `def` code can call `async def` code, and `async def` code can call `def` code.
Queries run in the thread of the database connection, and `async def` functions run on the event loop.
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
    """Inside this context manager, asgiref does not find an outer call of `async_to_sync`. If the work runs in a
    transaction, the package runs the work inside this context manager.

    Under WSGI, Django calls `async_to_sync` for an async view. Under ASGI, Django calls `async_to_sync` if the project
    has a sync middleware.

    The work can start an asyncio task. This task can run longer than the work. For example, `asyncio.gather` does not
    stop its other tasks when one task fails. If the work runs inside this context manager, a later query of the task
    raises a `RuntimeError`. Without this context manager, asgiref would run the task's query in the wrong thread,
    because asgiref would choose the thread that made the outer call. In this thread, the query would use the database
    connection of the work. But the transaction of the work has already ended. So the database would commit the query of
    the task separately. If the transaction of the work was rolled back, a retry would run the query again, and write
    the same data twice.
    """

    _above: Any = None

    def __enter__(self) -> None:
        bridges: Any = AsyncToSync.executors
        try:
            self._above = bridges.current
        except AttributeError:  # without the attribute `current`, asgiref is slow in this thread
            bridges.current = None
        if self._above is not None:
            bridges.current = None

    def __exit__(self, *raised: object) -> None:
        if self._above is not None:
            AsyncToSync.executors.current = self._above


def awaiting(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Convert a coroutine function into a plain function.

    The plain function calls asgiref's `async_to_sync` inside the context manager `NoBridgeAbove`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with NoBridgeAbove():
            return async_to_sync(function)(*args, **kwargs)

    return call


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a `def` or `async def` function, so that the result is a normal synchronous function. If the given function
    returns an awaitable, the synchronous function waits for the result.
    """

    async def result_of(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    def plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return awaiting(result_of)(result) if isawaitable(result) else result

    # Because of `__wrapped__`, `inspect.signature` returns the signature of the original function. This signature shows
    # whether the function has the parameter `operation`.
    plain.__wrapped__ = function  # type: ignore[attr-defined]
    return plain


async def awaited(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a `def` or `async def` function, and return its result. A `def` function runs in a thread. If a `def`
    function returns an awaitable, this awaitable is also awaited.
    """
    if not iscoroutinefunction(function):
        function = sync_to_async(function)
    result = await function(*args, **kwargs)
    return await result if isawaitable(result) else result


async def in_thread(run: Callable[[Callable[..., Any]], T], work: Callable[..., Any]) -> T:
    """Call the function `run` in the thread of the database connection, and return its result.

    If `work` is a coroutine function, `work` runs on the event loop. But if `work` uses `sync_to_async` to call a
    function, this function runs in the thread of the connection. So the queries of this function are part of the
    transaction. If the caller is cancelled, `work` is cancelled, too. Then `CancelledError` rolls the transaction back.

    Args:
        run: this function is called in the thread. Its argument is a plain function that runs `work`.
        work: a `def` or `async def` function.
    """
    cancelled = False

    def refuse_if_cancelled() -> None:
        # If the caller is cancelled, the thread continues, and still claims the key. After the claim, this function
        # raises an error, so that the work does not start.
        if cancelled:
            raise asyncio.CancelledError

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()
        return await work(*args, **kwargs)

    def form(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()  # if the event loop has ended, nothing can await a coroutine
        return (awaiting(awaited) if iscoroutinefunction(work) else work)(*args, **kwargs)

    try:
        return await sync_to_async(run)(update_wrapper(form, work))
    except asyncio.CancelledError:
        cancelled = True
        raise


async def until_done(work: Coroutine[Any, Any, T], *, at_most: float) -> T:
    """Await the coroutine `work`. If the current task is cancelled, first wait for the end of `work`, and then raise
    `CancelledError`.

    When a client closes its connection, the server cancels the request, but perhaps an external call is still running.
    If the package did not wait for the end of this call, the outcome of the call would be unknown. If the current task
    is cancelled a second time, `work` is stopped.

    Args:
        work: a coroutine, which runs in a task of its own.
        at_most: the seconds to wait after the cancellation. Then the work is stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})  # a cancelled `asyncio.wait` does not cancel the task
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=at_most)
        finally:
            task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # asyncio logs an error if no code reads the exception of a task
        raise
    return task.result()
