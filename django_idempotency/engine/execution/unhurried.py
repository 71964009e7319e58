"""Work that is finished although the request has been cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
