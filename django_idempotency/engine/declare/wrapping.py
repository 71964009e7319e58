"""From a view to its protected form: one engine for `def` and `async def`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async

from ..execution.bridge import awaiting
from ..request.pipeline import handle
from ..request.view_call import ViewCall

MakeCall = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ViewCall]


def protected_form(view: Callable[..., Any], make_call: MakeCall) -> Callable[..., Any]:
    """The protected form of `view`, which runs in a transaction of its own.

    An `async def` view costs one hop to the thread of the request's database connection. The view runs inside, on the
    event loop. Its own `sync_to_async` calls come back to that thread, and so into our transaction. A cancelled request
    cancels the view, and the exception rolls the transaction back.

    Args:
        make_call: returns the `ViewCall` of one call, from the view, its positional and its keyword arguments.
    """
    if not iscoroutinefunction(view):

        def protected(*args: Any, **kwargs: Any) -> Any:
            return handle(make_call(view, args, kwargs))

        return protected

    async def aprotected(*args: Any, **kwargs: Any) -> Any:
        call = make_call(view, args, kwargs)
        if call.method not in call.options.methods:
            return await view(*args, **kwargs)
        cancelled = False

        async def unless_cancelled(*args: Any, **kwargs: Any) -> Any:
            # A request that was cancelled during the claim has no view yet to cancel, and the thread goes on.
            if cancelled:
                raise asyncio.CancelledError
            return await view(*args, **kwargs)

        call.view = update_wrapper(awaiting(unless_cancelled), view)
        try:
            return await sync_to_async(handle)(call)
        except asyncio.CancelledError:
            cancelled = True
            raise

    return aprotected
