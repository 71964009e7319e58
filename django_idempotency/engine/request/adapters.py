"""Which framework does an object come from, and how does the package meet this framework?

An `Adapter` is registered for each framework, under the name of the framework's package. It is imported when the
package meets the first object of that framework, because the adapter imports the framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from django.core.handlers.base import BaseHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from ..conf import get_settings
from ..execution.bridge import synchronous
from ..protocol.outcomes import Finished
from .callers import default_scope, user_scope
from .calls import Call
from .fingerprints import payload_of

REGISTERED = {
    "ninja": "django_idempotency.ninja.operations.ADAPTER",
    "rest_framework": "django_idempotency.rest_framework.adapter.ADAPTER",
}

RUNNING = "_idempotency_ninja"
"""The attribute of a request that holds Django Ninja's running operation."""


class Adapter:
    """What the engine asks a framework. This class answers for plain Django, and is the base of the others."""

    # --- the request

    def is_request(self, candidate: Any) -> bool:
        return isinstance(candidate, HttpRequest)

    def django_request(self, request: Any) -> HttpRequest:
        """Return Django's own request behind a request of the framework."""
        return request  # type: ignore[no-any-return]

    caller = staticmethod(user_scope)
    """Returns the scope of the caller whom the framework has authenticated, with the client that acts for it, or None.
    """

    payload = staticmethod(payload_of)
    """Returns what the body contains, as the view will read it. Two equal payloads are the same request."""

    # --- the response

    def response(self, call: Call, returned: Any) -> HttpResponseBase:
        """Make a response that can be stored from what the view has returned. A `TemplateResponse`, for example, is
        rendered.

        If the view has not returned a response, this method raises an error before the COMMIT.
        """
        if isinstance(returned, HttpResponseBase):
            return returned.render() if hasattr(returned, "render") else returned
        name = getattr(call.view, "__qualname__", None) or f"{type(call.view).__name__}.__call__"
        said = f"The view {call.view.__module__}.{name}"
        if inspect.iscoroutine(returned):
            returned.close()
        # Django would check the response after the COMMIT, which would be too late. So this method checks the response
        # before the COMMIT.
        BaseHandler().check_response(returned, call.view, said)
        raise ValueError(f"{said} didn't return an HttpResponse object. It returned {returned!r} instead.")

    def answer(self, call: Call, error: Exception) -> Finished[HttpResponseBase] | None:
        """Return what the framework answers to an exception of the view, after the view's writes are rolled back.

        Plain Django answers None: the exception goes on to Django's own handlers.
        """
        return None

    def may_replay(self, call: Call, allowed: Callable[..., bool]) -> bool:
        """Ask the project's function `may_replay`, which gets the request and the URL's arguments."""
        match_ = call.request.resolver_match
        args, kwargs = getattr(match_, "args", ()), getattr(match_, "kwargs", call.kwargs)
        return bool(synchronous(allowed)(call.asked_with, *args, **kwargs))

    def deliver(self, call: Call, response: Any, *, replayed: bool, own: bool = False) -> HttpResponseBase:
        """Say in a header whether the response is a replay, and return the response.

        Args:
            own: True for the view's own response, which `response` or `answer` has made.
        """
        response.headers[get_settings().replayed_header] = "true" if replayed else "false"
        return response  # type: ignore[no-any-return]

    # --- without a request

    def operations(self, callback: Any) -> Iterator[tuple[str, str, Any]] | None:
        """Return the HTTP method, the name and the declaration of each operation behind the callback of a URL. Return
        None if the callback is a view itself: a function or a class.
        """
        return None

    def recovered(self, returned: Any, target: Any) -> HttpResponseBase:
        """Make a response from what `reconcile` has returned in a recovery, for the protected callable `target`."""
        return returned  # type: ignore[no-any-return]


DJANGO = Adapter()


def adapter_of(*candidates: Any) -> Adapter:
    """Return the adapter of the first object that comes from a registered framework, else plain Django's."""
    for candidate in candidates:
        kind = candidate if isinstance(candidate, type) else type(candidate)
        if (adapter := _registered(kind, str(getattr(candidate, "__module__", "")))) is not None:
            return adapter
    return DJANGO


@lru_cache(maxsize=1024)  # a request is looked at once, by its class
def _registered(kind: type, module: str) -> Adapter | None:
    homes = {name.partition(".")[0] for name in (module, *(base.__module__ for base in kind.__mro__))}
    path = next((REGISTERED[name] for name in REGISTERED if name in homes), None)
    return None if path is None else import_string(path)


def caller_scope(request: Any) -> str:
    return default_scope(request, adapter_of(request, getattr(request, RUNNING, None)).caller)
