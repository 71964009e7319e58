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
    """This context manager hides an outer call of `async_to_sync` from asgiref while work runs in a transaction.

    A task of the work can run longer than the work itself. For example, `asyncio.gather` does not stop its other tasks
    when one task fails. With this context manager, the next query of such a task raises a `RuntimeError`. Without the
    context manager, asgiref would run the query in the thread of the outer `async_to_sync` call. Django makes such an
    outer call around an async view under WSGI, and around a sync middleware under ASGI. In the thread of the outer
    call, the query would use our database connection. But our transaction has already ended, perhaps with a rollback.
    So the query of the task would be committed alone, and a retry would write the same data again.
    """

    def __enter__(self) -> None:
        bridges: Any = AsyncToSync.executors
        try:
            self._above = bridges.current
        except AttributeError:  # asgiref is slow in a thread without the attribute `current`, so set `current`
            self._above = None
            bridges.current = None
        if self._above is not None:
            bridges.current = None

    def __exit__(self, *raised: object) -> None:
        if self._above is not None:
            AsyncToSync.executors.current = self._above


def awaiting(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Return a plain function that runs a coroutine function. asgiref's `async_to_sync` does the same.

    But the plain function of `awaiting` also uses the context manager `NoBridgeAbove`.
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
    """Call and await a coroutine function, or call a plain function in a thread. If the plain function returns an
    awaitable, also await the awaitable.
    """
    if not iscoroutinefunction(function):
        function = sync_to_async(function)
    result = await function(*args, **kwargs)
    return await result if isawaitable(result) else result


async def in_thread(run: Callable[[Callable[..., Any]], T], work: Callable[..., Any]) -> T:
    """Call `run(work)` in the thread of the database connection, and wait for its result on the event loop.

    If `work` is a coroutine function, `work` runs on the event loop. But the `sync_to_async` calls of `work` run in the
    thread of the connection, so the queries of these calls are part of the transaction. If the caller is cancelled,
    `work` is cancelled, too, and the exception rolls the transaction back.

    Args:
        run: this function is called in the thread. Its argument is a plain function that runs `work`.
        work: a `def` or `async def` function.
    """
    cancelled = False

    def refuse_if_cancelled() -> None:
        # If the caller is cancelled, a claim in the thread continues. After the claim, this check raises an error, and
        # the work does not start.
        if cancelled:
            raise asyncio.CancelledError

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()
        return await work(*args, **kwargs)

    def form(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()  # if the event loop has ended, no code would await a new coroutine
        return (awaiting(awaited) if iscoroutinefunction(work) else work)(*args, **kwargs)

    try:
        return await sync_to_async(run)(update_wrapper(form, work))
    except asyncio.CancelledError:
        cancelled = True
        raise


async def finished(work: Coroutine[Any, Any, T], *, at_most: float) -> T:
    """Await `work`. If the current task is cancelled, wait for the end of `work`, and then raise `CancelledError`.

    When a client closes its connection, the server cancels the request. Perhaps an external call is running, and the
    external service answers a moment later. Without the wait, the outcome of this call would be unknown. A second
    cancellation of the task stops `work`.

    Args:
        work: a coroutine, which runs in a task of its own.
        at_most: the seconds to wait after the cancellation. Then the work is stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})  # if `asyncio.wait` is cancelled, the task is not cancelled and continues
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=at_most)
        finally:
            task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # asyncio logs an error if no code reads the exception of a task
        raise
    return task.result()
