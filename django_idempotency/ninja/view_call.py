"""One request to one protected operation of Django Ninja."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja.operation import Operation, PathView

from ..engine.declare.callables import unwrapped
from ..engine.protocol.error_text import describe
from ..engine.protocol.outcomes import Finished
from ..engine.request.callers import auth_scope
from ..engine.request.view_call import ViewCall, rendered
from ..engine.stores import alias_of
from ..exceptions import IdempotencyConfigurationError


class NinjaViewCall(ViewCall):
    """Runs below `Operation.run`: the caller is authenticated and within the throttles, the parameters are parsed."""

    ninja_operation: Operation

    def scope(self) -> str | None:
        """The caller that the operation's own authentication found, unless `scope=` says who is calling."""
        auth = getattr(self.request, "auth", None)
        if self.options.scope is not None or not auth or getattr(auth, "is_authenticated", True) is False:
            return super().scope()
        # Django Ninja does not keep which authenticator has set it: user "17", or partner "17"?
        if isinstance(auth, str) and (count := _count_of_texts(self.ninja_operation)) > 1:
            raise IdempotencyConfigurationError(
                f"request.auth is a str, which does not tell which of the {count} authenticators of this operation "
                "gave it. Return a model instance from each authenticator, or pass scope=callable(request)."
            )
        return auth_scope(auth)

    def ready(self, response: Any) -> HttpResponseBase:
        """Convert the result as the operation itself would, but before the COMMIT: a schema may refuse the result."""
        operation = self.ninja_operation
        # The `response` parameter of the operation carries the headers that the operation set.
        temporal: Any = self.kwargs.get(operation.signature.response_arg or "")
        if not isinstance(temporal, HttpResponse):
            temporal = operation.api.create_temporal_response(self.request)
        return self.render(operation._result_to_response(self.request, response, temporal))

    def answer(self, error: Exception) -> Finished[HttpResponseBase]:
        """The exception handlers of the API, in a transaction of their own."""
        api = self.ninja_operation.api
        try:
            with transaction.atomic(using=alias_of(self.options)):
                return self.judge(self.render(api.on_exception(self.request, error)))
        except Exception as unanswered:
            # On its way out the exception meets `Operation.run`, which would ask the same handler again.
            api.add_exception_handler(Unanswered, _give_up)
            raise Unanswered(describe(unanswered)) from unanswered


def _count_of_texts(operation: Operation) -> int:
    """How many authenticators may set `request.auth` to a text. Django Ninja's own for sessions set a user."""
    return sum(type(callback).__module__ != "ninja.security.session" for callback in operation.auth_callbacks)


def without_request(operation: Operation, method: str, result: Any) -> HttpResponseBase:
    """Convert what `reconcile` has returned while no client was there, by an empty request: Django Ninja needs one."""
    request = HttpRequest()
    request.method = method
    return rendered(operation._result_to_response(request, result, operation.api.create_temporal_response(request)))


class Unanswered(Exception):
    """Carries an exception that no handler answers past Django Ninja."""


def _give_up(request: HttpRequest, error: Any) -> NoReturn:
    cause = error.__cause__
    context = cause.__context__
    try:
        raise cause
    finally:
        cause.__context__ = context  # the exception that the operation was handling, not our Unanswered


def operation_of(request: HttpRequest) -> Operation:
    """The operation that Django Ninja is running for this request.

    A decorated function is not told: one function may serve several routes, and each mounted router has operations
    of its own. But the URL's callback is a closure around the `PathView` that chooses among them.
    """
    for callback in unwrapped(getattr(getattr(request, "resolver_match", None), "func", None)):
        enclosed = inspect.getclosurevars(callback).nonlocals.values() if inspect.isfunction(callback) else ()
        for owner in enclosed:
            if isinstance(owner, PathView) and (operation := owner._find_operation(request)) is not None:
                return operation
    raise IdempotencyConfigurationError(
        f"idempotent_operation cannot find the Django Ninja operation behind {request.path!r}. It protects operations "
        "that are called through the URLs of a NinjaAPI; for a Django view use idempotent."
    )
