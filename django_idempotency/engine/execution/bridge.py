"""From a thread into the event loop, for work that belongs to one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import AsyncToSync, async_to_sync


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
