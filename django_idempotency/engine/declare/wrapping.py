"""From a callable to its protected form: one engine for `def` and `async def`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import update_wrapper
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from ..request.pipeline import handle
from ..request.view_call import ViewCall

ViewCallOf = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ViewCall]


def guard(view: Callable[..., Any], call_of: ViewCallOf) -> Callable[..., Any]:
    """The protected form of `view`: `exchange_of(view, args, kwargs)` says what each call is about.

    The view runs in a transaction of its own. An `async def` costs one hop to the thread of the request's database
    connection; the view runs inside, on the event loop, and its own `sync_to_async` calls come back to that thread,
    and so into our transaction. A cancelled request cancels the view, and the exception rolls the transaction back.
    """
    if not iscoroutinefunction(view):
        return lambda *args, **kwargs: handle(call_of(view, args, kwargs))

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        call = call_of(view, args, kwargs)
        if call.request.method not in call.options.methods:
            return await view(*args, **kwargs)
        cancelled = False

        async def unless_cancelled(*args: Any, **kwargs: Any) -> Any:
            # While the claim was made there was no view to cancel, and the thread goes on without its request.
            if cancelled:
                raise asyncio.CancelledError
            return await view(*args, **kwargs)

        call.view = update_wrapper(async_to_sync(unless_cancelled), view)
        try:
            return await sync_to_async(handle)(call)
        except asyncio.CancelledError:
            cancelled = True
            raise

    return guarded
