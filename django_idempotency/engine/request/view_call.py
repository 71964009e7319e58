"""One request to one protected view, as plain Django sees it. The REST framework has its own subclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, settings
from .callers import scope_of
from .fingerprints import fingerprint_of


class ViewCall:
    """What the pipeline needs to know of the framework around the view.

    request: Django's request.
    asked_with: the request that the project's own callables (`scope`, `key`, …) are called with.
    view, args, kwargs: the unprotected view and how to call it.
    options: resolved, every one has a value.
    """

    def __init__(
        self,
        request: HttpRequest,
        view: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Idempotency,
        asked_with: Any = None,
    ) -> None:
        self.request = request
        self.view = view
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.asked_with = request if asked_with is None else asked_with

    def operation(self) -> str:
        """Method and route: what is being asked for, whatever the arguments."""
        if self.options.operation is not None:
            return self.options.operation
        match_ = self.request.resolver_match
        route = match_.route if match_ else f"{self.view.__module__}.{getattr(self.view, '__qualname__', self.view)}"
        return f"{self.request.method} {route}"

    def scope(self) -> str | None:
        """Who is calling; None for a caller who must be refused."""
        return scope_of(self.asked_with, self.options)

    def fingerprint(self) -> bytes | None:
        return fingerprint_of(self.request, self.options, self.asked_with)

    def pass_through(self) -> HttpResponseBase:
        """Call the view as if it were not protected."""
        response: HttpResponseBase = self.view(*self.args, **self.kwargs)
        return response

    def run(self) -> HttpResponseBase:
        """Call the view; returns a response that is ready to be sent."""
        return self.ready(self.view(*self.args, **self.kwargs))

    def ready(self, response: Any) -> HttpResponseBase:
        """What the view returned, as it can be kept and sent."""
        return self.render(response)

    def answer(self, error: Exception) -> HttpResponseBase:
        """What the framework answers to an exception of the view, outside its transaction, or raise it.

        Plain Django: nothing. The exception goes on to Django's own handlers, after the rollback.
        """
        raise error

    def may_replay(self, allowed: Callable[..., bool]) -> bool:
        """Ask the project before a replay: `may_replay(request, *args, **kwargs)` with the URL's arguments."""
        match_ = self.request.resolver_match
        args, kwargs = (match_.args, match_.kwargs) if match_ else ((), self.kwargs)
        return bool(allowed(self.asked_with, *args, **kwargs))

    def deliver(self, response: Any, *, replayed: bool) -> HttpResponseBase:
        """Hand the answer to the framework, marked as first-hand or replayed."""
        response.headers[settings().replayed_header] = "true" if replayed else "false"
        delivered: HttpResponseBase = response
        return delivered

    def render(self, response: Any) -> HttpResponseBase:
        if not isinstance(response, HttpResponseBase):
            if inspect.iscoroutine(response):
                response.close()
                raise IdempotencyConfigurationError(f"{self.view!r} is asynchronous, which idempotent cannot protect.")
            # Django's own complaint would come after our COMMIT.
            raise ValueError(f"The view {self.view!r} didn't return an HttpResponse object. It returned {response!r}.")
        if callable(getattr(response, "render", None)):
            rendered: HttpResponseBase = response.render()  # type: ignore[attr-defined]
            return rendered
        return response
