"""A single call to a protected view, before its key is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import get_language

from ..conf import Options
from ..protocol.outcomes import Finished, Verdict
from ..stores.transactions import atomically
from .responses import capture, refuse_stream

T = TypeVar("T")


class Call:
    """One call to a protected view.

    Args:
        request: Django's request.
        asked_with: the request that the project's own callables (`scope`, `key`, …) are called with.
        view, args, kwargs: the unprotected view and its arguments.
        options: the resolved options, in which every option has a value.
    """

    def __init__(
        self,
        request: HttpRequest,
        view: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        asked_with: Any = None,
    ) -> None:
        self.request = request
        self.view = view
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.asked_with = request if asked_with is None else asked_with
        # A middleware may have lowercased the method; Django's views accept that.
        self.method = (request.method or "").upper()

    def operation_name(self) -> str:
        """Return the operation's name: by default the HTTP method and the route, such as `orders/<int:pk>/`."""
        if self.options.operation is not None:
            return self.options.operation
        # Some tests and some middleware set their own `resolver_match`, without a route.
        route = getattr(self.request.resolver_match, "route", None)
        if route is None:
            route = f"{self.view.__module__}.{getattr(self.view, '__qualname__', self.view)}"
        return f"{self.method} {route}"

    def in_own_transaction(self, work: Callable[[], T]) -> T:
        """Do the work in a transaction, or without one if a backend is used."""
        return atomically(self.options.runner.alias(), work)

    def judge(self, response: HttpResponseBase) -> Finished[HttpResponseBase]:
        """Use the response to decide what happens to the view's writes and to the key."""
        if response.streaming:
            refuse_stream(response, self.options)
        verdict = self.options.verdict_on(response)
        if verdict is Verdict.KEEP:
            if hasattr(self.request, "LANGUAGE_CODE") and (language := get_language()) is not None:
                # `LocaleMiddleware` also sets this header, but for a replay it would use the second request's language.
                response.headers.setdefault("Content-Language", language)
            return Finished(value=response, verdict=verdict, snapshot=capture(response, self.options))
        return Finished(value=response, verdict=verdict, reason=f"The view answered {response.status_code}.")
