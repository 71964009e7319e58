"""This module calls a protected view, and decides what happens to the view's writes and to the key.

The class `ViewCall` is for plain Django. The REST framework and Django Ninja have their own subclasses of `ViewCall`,
in the packages `rest_framework` and `ninja`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from django.core.handlers.base import BaseHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import get_language

from ...exceptions import IdempotencyConfigurationError
from ..conf import Options, get_settings
from ..execution.bridge import synchronous
from ..execution.leased import LeasedOperation
from ..execution.operation import Operation
from ..protocol.outcomes import Finished, Verdict
from .responses import capture


class ViewCall:
    """A `ViewCall` object represents one call of a protected view.

    The class `ViewCall` implements the protocol `Work`. While the protected view runs, Django's request object has the
    attribute `_idempotency_runs`.

    Args:
        request: Django's request.
        asked_with: the request object that is passed to the project's own callables (`scope`, `key`, …).
        view, args, kwargs: the unprotected view and the arguments of the view.
        options: the resolved options, in which every option has a value.
    """

    authenticated: Callable[[], str | None] | None = None
    """Returns the scope of the caller whom the framework's own authentication has found. This attribute is None if the
    framework has no authentication of its own. Then `request.user` is read.
    """
    parsed: Callable[[], Any] | None = None
    """Returns the data that the framework's parser has made of the body. The attribute is None without such a parser.
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
        # A middleware can write `request.method` in lower case, and Django's views accept lower case.
        self.method = (request.method or "").upper()

    def operation_name(self) -> str:
        """Return the name of the operation. By default, the name is the HTTP method and the route of the request.

        The route is a pattern such as `orders/<int:pk>/`, without the values of its arguments.
        """
        if self.options.operation is not None:
            return self.options.operation
        # Some tests and middlewares set their own `request.resolver_match`, which has no route.
        route = getattr(self.request.resolver_match, "route", None)
        if route is None:
            route = f"{self.view.__module__}.{getattr(self.view, '__qualname__', self.view)}"
        return f"{self.method} {route}"

    # --- running

    def run(self, operation: Operation) -> Finished[HttpResponseBase]:
        """Call the view. The response decides what happens to the view's writes and to the key."""
        request: Any = self.request
        self._attach(operation)
        request._idempotency_runs = True
        try:
            response = self.ready(self.view(*self.args, **self.kwargs))
        finally:
            del request._idempotency_runs
        return self.judge(response)

    def judge(self, response: HttpResponseBase) -> Finished[HttpResponseBase]:
        """Read the response, and decide what happens to the view's writes and to the key."""
        verdict = self.options.verdict_on(response)
        if verdict is Verdict.KEEP:
            if hasattr(self.request, "LANGUAGE_CODE") and (language := get_language()) is not None:
                # `LocaleMiddleware` would do it, too, but a replay would get the language of the second request.
                response.headers.setdefault("Content-Language", language)
            return Finished(value=response, verdict=verdict, snapshot=capture(response, self.options))
        return Finished(value=response, verdict=verdict, reason=f"The view answered {response.status_code}.")

    def answer(self, error: Exception) -> Finished[HttpResponseBase] | None:
        """If the view raises an exception, return the framework's response for this exception. In plain Django, return
        None.

        In plain Django, the exception reaches Django's own handlers after the rollback.
        """
        return None

    def reconcile(self, operation: Operation) -> Finished[HttpResponseBase] | None:
        """After an abandoned attempt, call the project's function `reconcile`, which can return the final response.

        If the function returns None, the view runs again.
        """
        if self.options.reconcile is None:
            return None
        self._attach(operation)
        response = synchronous(self.options.reconcile)(operation)
        return None if response is None else reconciled(self.ready(response), self.options)

    def _attach(self, operation: Operation) -> None:
        """Set the attribute `request.idempotency`. In leased mode, also set the attribute `operation.request`."""
        request: Any = self.request
        request.idempotency = operation
        # Only the project's function `reconcile` needs the attribute `operation.request`. Atomic mode never calls this
        # function. The attribute would make a reference cycle, so atomic mode does not set the attribute.
        if isinstance(operation, LeasedOperation):
            operation.request = self.asked_with

    # --- answering

    def render(self, response: Any) -> HttpResponseBase:
        """Return the response of the view. If the response has a method `render`, such as a `TemplateResponse`, call
        this method first.

        If the view has not returned a response, this method raises an error before the COMMIT.
        """
        if isinstance(response, HttpResponseBase):
            return response.render() if hasattr(response, "render") else response
        name = getattr(self.view, "__qualname__", None) or f"{type(self.view).__name__}.__call__"
        said = f"The view {self.view.__module__}.{name}"
        if inspect.iscoroutine(response):
            response.close()
        # Django would check the response after the COMMIT, which would be too late. So this method checks the response
        # before the COMMIT.
        BaseHandler().check_response(response, self.view, said)
        raise ValueError(f"{said} didn't return an HttpResponse object. It returned {response!r} instead.")

    ready = render
    """Converts the view's return value into a response that can be stored. Subclasses can accept more kinds of values.
    """

    def may_replay(self, allowed: Callable[..., bool]) -> bool:
        """Return whether a replay is allowed. The project's function `may_replay` gets the request and the URL's
        arguments.
        """
        match_ = self.request.resolver_match
        args, kwargs = getattr(match_, "args", ()), getattr(match_, "kwargs", self.kwargs)
        return bool(synchronous(allowed)(self.asked_with, *args, **kwargs))

    def deliver(self, response: Any, *, replayed: bool) -> HttpResponseBase:
        """Set the header that says whether the response is a replay, and return the response."""
        response.headers[get_settings().replayed_header] = "true" if replayed else "false"
        return response  # type: ignore[no-any-return]


def reconciled(response: Any, options: Options) -> Finished[HttpResponseBase]:
    """Return a final result that contains the response of the project's function `reconcile`. If necessary, render the
    response first.

    Raises `IdempotencyConfigurationError` if the response is not final.
    """
    if not isinstance(response, HttpResponseBase):
        raise IdempotencyConfigurationError(
            f"reconcile returned {response!r}; return an HttpResponse, or None to leave the key to the next retry."
        )
    if hasattr(response, "render"):
        response.render()
    if options.verdict_on(response) is not Verdict.KEEP:
        raise IdempotencyConfigurationError(
            f"reconcile answered {response.status_code}, which is not final and would be replayed. If it does not know "
            "yet, let it raise: the doubt remains, and the next retry asks again."
        )
    return Finished(value=response, verdict=Verdict.KEEP, snapshot=capture(response, options))


class IdempotentHttpRequest(HttpRequest):
    """In a protected view, annotate the argument `request` with this class."""

    idempotency: Operation


def get_operation(request: Any) -> Operation:
    """Return `request.idempotency`, which contains the operation of a protected view.

    In leased mode, the operation can run steps. In both modes, the operation has the attributes `key` and `reference`,
    and the method `refer_to`. The attribute `key` of the operation is None if the view runs without an idempotency key.

    Args:
        request: Django's or the REST framework's request.

    Raises:
        IdempotencyConfigurationError: outside of protected views.
    """
    operation = getattr(request, "idempotency", None)
    if not isinstance(operation, Operation):
        raise IdempotencyConfigurationError(
            "this request is not inside a protected view, so it has no operation. Protect the view with @idempotent or "
            "with IdempotencyMixin."
        )
    return operation
