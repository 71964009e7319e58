"""Calls between `def` and `async def`: queries run in the connection's thread, and coroutines on the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial, update_wrapper
from inspect import isawaitable
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, async_to_sync, iscoroutinefunction, sync_to_async

T = TypeVar("T")


def without_bridge_above(work: Callable[[], T]) -> T:
    """Do the work, and hide an outer `async_to_sync` call from asgiref meanwhile.

    Under WSGI, Django wraps such a call around every async view; under ASGI, only around async views below a sync
    middleware. A task started by the work can outlive it: if one task in an `asyncio.gather` fails, the others keep
    running. The next query of such a task would run in the outer call's thread, on the connection used for the work. By
    then, the work's transaction would have ended. The query would be committed separately, so if the work was rolled
    back, a retry would write the same data again. With the outer call hidden, that query raises a `RuntimeError`
    instead.
    """
    bridges: Any = getattr(AsyncToSync, "executors", None)
    try:
        above = bridges.current
    except AttributeError:
        above = None
        if bridges is not None:  # asgiref is slow in a thread without this attribute
            bridges.current = None
    if above is None:
        return work()
    try:
        try:
            bridges.current = None
            return work()
        finally:
            bridges.current = above
    finally:  # an exception may have struck just before the inner assignment
        bridges.current = above


def awaiting(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Turn a coroutine function into a plain function that runs it inside `without_bridge_above`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return without_bridge_above(partial(async_to_sync(function), *args, **kwargs))

    return call


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a `def` or `async def` function into a plain function that also waits for a returned awaitable."""

    async def result_of(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    def plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return awaiting(result_of)(result) if isawaitable(result) else result

    # `inspect.signature` must see whether the function has the `operation` parameter.
    plain.__wrapped__ = function  # type: ignore[attr-defined]
    return plain


def is_on_event_loop() -> bool:
    """Whether Django would refuse a query here, because an event loop runs in this thread."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    return False


async def awaited(function: Callable[[], Any]) -> Any:
    """Call a `def` function in a thread, or await an `async def` one. A returned awaitable is also awaited."""
    if not iscoroutinefunction(function):
        function = sync_to_async(function)
    result = await function()
    return await result if isawaitable(result) else result


async def in_thread(run: Callable[[Callable[..., Any]], T], work: Callable[..., Any]) -> T:
    """Call `run` in the database connection's thread, passing it a plain function that runs `work`.

    A coroutine function runs on the event loop, but any code that it calls through `sync_to_async` runs in the
    connection's thread, so its queries are part of the transaction. Cancelling the caller cancels `work`, and
    `CancelledError` rolls the transaction back.
    """
    cancelled = False

    def refuse_if_cancelled() -> None:
        # After a cancellation, the thread continues and still claims the key, but it must not start the work.
        if cancelled:
            raise asyncio.CancelledError

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()
        return await work(*args, **kwargs)

    def form(*args: Any, **kwargs: Any) -> Any:
        refuse_if_cancelled()  # after the event loop has ended, nothing can await a coroutine
        return (awaiting(awaited) if iscoroutinefunction(work) else work)(*args, **kwargs)

    try:
        return await sync_to_async(run)(update_wrapper(form, work))
    except asyncio.CancelledError:
        cancelled = True
        raise


async def until_done(work: Coroutine[Any, Any, T], *, at_most: float) -> T:
    """Await `work` until it ends, even if the current task is cancelled, and only then raise `CancelledError`.

    The server cancels a request if its client disconnects. During an external call, that would leave the call's
    outcome unknown. A second cancellation stops the work.

    Args:
        work: the coroutine, which runs in its own task.
        at_most: how many seconds to wait after the cancellation before the work is stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})  # a cancelled `asyncio.wait` does not cancel the task
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=at_most)
        finally:
            task.cancel()  # if the task has failed, this keeps asyncio from logging that its error was never read
        raise
    return task.result()
