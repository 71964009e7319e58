"""From a thread into the event loop, for work that belongs to one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import AsyncToSync, async_to_sync


def awaiting(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A form of the coroutine function for callers in a thread, as asgiref's `async_to_sync` makes it.

    One thing differs. A task that outlives the function, such as one that `asyncio.gather` leaves behind at the first
    error, gets a `RuntimeError` for its next query. asgiref hands that query to the bridge above ours (under WSGI there
    is Django's own), whose thread has the same connection. Our transaction has ended there, perhaps by a rollback, so
    the query would commit by itself, and the retry would write again.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        bridges: Any = AsyncToSync.executors
        above, bridges.current = getattr(bridges, "current", None), None
        try:
            return async_to_sync(function)(*args, **kwargs)
        finally:
            bridges.current = above

    return call
