"""From a view to its protected form: one engine for `def` and `async def`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction

from ..execution.bridge import in_thread
from ..request.pipeline import handle
from ..request.view_call import ViewCall

MakeCall = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ViewCall]


def protected_form(view: Callable[..., Any], make_call: MakeCall) -> Callable[..., Any]:
    """The protected form of `view`, which runs in a transaction of its own. Of `async def` views see `in_thread`.

    Args:
        make_call: returns the `ViewCall` of one call, from the view, its positional and its keyword arguments.
    """

    def protected(*args: Any, **kwargs: Any) -> Any:
        return handle(make_call(view, args, kwargs))

    async def aprotected(*args: Any, **kwargs: Any) -> Any:
        call = make_call(view, args, kwargs)
        if call.method not in call.options.methods:
            return await view(*args, **kwargs)

        def run(form: Callable[..., Any]) -> Any:
            call.view = form
            return handle(call)

        return await in_thread(run, view)

    return aprotected if iscoroutinefunction(view) else protected
