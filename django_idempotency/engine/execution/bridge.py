"""Between the event loop and the thread of the database connection, for work that belongs to one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import update_wrapper
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
