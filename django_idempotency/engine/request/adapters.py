"""Which framework does an object come from, and how does the package work with that framework?

Each framework has an `Adapter`, registered under the name of its package. Importing an adapter also imports its
framework, so this happens only when the first object of that framework is encountered.
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
from .callers import handed_on, project_scope
from .calls import Call
from .fingerprints import payload_of

REGISTERED = {
    "ninja": "django_idempotency.ninja.operations.ADAPTER",
    "rest_framework": "django_idempotency.rest_framework.adapter.ADAPTER",
}

RUNNING = "_idempotency_ninja"
"""The request attribute that holds Django Ninja's running operation."""


class Adapter:
    """What the engine needs from a framework. This class handles plain Django views and is the base of the others."""

    # --- the request

    def is_request(self, candidate: Any) -> bool:
        return isinstance(candidate, HttpRequest)

    def django_request(self, request: Any) -> HttpRequest:
        """Return the Django request that the framework's request wraps."""
        return request  # type: ignore[no-any-return]

    handed_on = staticmethod(handed_on)
    """Returns what the framework's authentication hands on: the user, and what an authenticator has returned."""

    payload = staticmethod(payload_of)
    """Returns the body's content as the view will read it. Requests with equal payloads count as the same."""

    # --- the response

    def response(self, call: Call, returned: Any) -> HttpResponseBase:
        """Turn what the view has returned into a response that can be stored, rendering it if necessary.

        If that is impossible, raise an exception here, before the COMMIT.
        """
        if isinstance(returned, HttpResponseBase):
            return returned.render() if hasattr(returned, "render") else returned
        name = getattr(call.view, "__qualname__", None) or f"{type(call.view).__name__}.__call__"
        said = f"The view {call.view.__module__}.{name}"
        if inspect.iscoroutine(returned):
            returned.close()
        # Django would check this only after the COMMIT.
        BaseHandler().check_response(returned, call.view, said)
        raise ValueError(f"{said} didn't return an HttpResponse object. It returned {returned!r} instead.")

    def reconciled(self, call: Call, returned: Any) -> Any:
        """Turn the value that `reconcile` returned into a response, as `response` does for the view.

        A value that isn't a response is returned unchanged: `response` would raise an error that blames the view.
        """
        return self.response(call, returned) if isinstance(returned, HttpResponseBase) else returned

    def answer(self, call: Call, error: Exception) -> Finished[HttpResponseBase] | None:
        """Return the framework's response to an exception that the view raised.

        In atomic mode, the view's writes have already been rolled back. For plain Django, return None: the exception
        propagates to Django's own handlers.
        """
        return None

    def may_replay(self, call: Call, allowed: Callable[..., bool]) -> bool:
        """Call the project's `may_replay` with the request and the URL arguments."""
        match_ = call.request.resolver_match
        args, kwargs = getattr(match_, "args", ()), getattr(match_, "kwargs", call.kwargs)
        return bool(synchronous(allowed)(call.asked_with, *args, **kwargs))

    def deliver(self, call: Call, response: Any, *, replayed: bool, own: bool = False) -> HttpResponseBase:
        """Set the header that says whether this is a replay, and return the response.

        Args:
            own: whether this is the view's own response, which `response` or `answer` has returned.
        """
        response.headers[get_settings().replayed_header] = "true" if replayed else "false"
        return response  # type: ignore[no-any-return]

    def unanswered(self, call: Call, error: Exception) -> None:
        """Note an exception that leaves the package, such as one from COMMIT, before the framework responds to it."""

    # --- without a request

    def operations(self, callback: Any) -> Iterator[tuple[str, str, Any]] | None:
        """Return the method, name and declaration of each operation behind a callback, or None for a plain view."""
        return None

    def recovered(self, returned: Any, target: Any) -> HttpResponseBase:
        """Build the response for `target`, the protected callable, from the value that `reconcile` returned."""
        return returned  # type: ignore[no-any-return]


DJANGO = Adapter()


def adapter_of(*candidates: Any) -> Adapter:
    """Return the adapter for the first object that comes from a registered framework, or the one for plain Django."""
    for candidate in candidates:
        kind: type = type(candidate)
        if (adapter := _registered(kind, str(getattr(candidate, "__module__", "")))) is not None:
            return adapter
    return DJANGO


@lru_cache(maxsize=1024)  # so that each class is looked up only once
def _registered(kind: type, module: str) -> Adapter | None:
    homes = {name.partition(".")[0] for name in (module, *(base.__module__ for base in kind.__mro__))}
    path = next((REGISTERED[name] for name in REGISTERED if name in homes), None)
    return None if path is None else import_string(path)


def scope_outside(request: Any, *, default: bool) -> str:
    """Return the scope of a request outside of the pipeline. See `project_scope`."""
    # In an unprotected Django Ninja operation, the request is Django's own, but the route's callback is Ninja's.
    callback = getattr(getattr(request, "resolver_match", None), "func", None)
    adapter = adapter_of(request, getattr(request, RUNNING, None), callback)
    return project_scope(request, adapter.handed_on, default=default)
