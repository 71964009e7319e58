"""The `idempotent_operation` decorator, and one request to an operation that it protects.

# Note [Around the operation and around its function]
Authentication, throttles and parsing stand in `Operation.run`, and the function is called last. The protection stands
around the function. A second wrapper stands around `run`: it tells the function which operation is running, and it
raises an exception that no handler of the API has answered. In `run` such an exception would ask the handler again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from inspect import getclosurevars, isfunction
from typing import Any, TypeVar, Unpack, overload

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja.decorators import decorate_view
from ninja.operation import Operation, PathView
from ninja.signature.utils import get_typed_signature

from ..engine.conf import SAFE_METHODS, Idempotency, Keywords, for_methods
from ..engine.declare.decorators import protected_form
from ..engine.declare.placement import NINJA_ORDER, refuse_view
from ..engine.declare.registry import MARK, Declaration, declare, given
from ..engine.declare.wrappers import dotted_name, unwrapped
from ..engine.protocol.error_text import describe
from ..engine.protocol.outcomes import Finished, Verdict
from ..engine.request.callers import auth_scope
from ..engine.request.view_call import ViewCall
from ..engine.stores import alias_of
from ..exceptions import IdempotencyConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
WAY_OUT = f" Put it below the route decorator:\n{NINJA_ORDER}"
RUNNING = "_idempotency_ninja"
"""Set on a request: the operation that runs."""
UNANSWERED = "_idempotency_unanswered"
"""Set on a request: what the exception handler of the API has raised."""


@overload
def idempotent_operation(view: F, /) -> F: ...


@overload
def idempotent_operation(options: Idempotency | None = None, /, **kwargs: Unpack[Keywords]) -> Callable[[F], F]: ...


def idempotent_operation(view: Any = None, /, **options: Any) -> Any:
    """Run an operation of Django Ninja at most once for each idempotency key, and replay its response to retries.

    Opens the transaction that the operation runs in. Inside an outer `atomic()`, such as that of ATOMIC_REQUESTS, it is
    a savepoint. An exception rolls it back, and the answer of the API's exception handlers is kept if it is final.

    Use it bare, with options as keyword arguments, or with an `Idempotency`, below the route decorator. It protects the
    methods of that route. Authentication, throttling and parsing come first, for a replay too.

    Raises:
        IdempotencyConfigurationError: where it could not protect the operation. Raised when the operation is decorated
            or routed if that can be known then, else on the first request, before the operation runs.
    """
    layer, view = given("idempotent_operation", view, options)
    return partial(_protect, layer) if view is None else _protect(layer, view)


def _protect(layer: Idempotency, view: Any) -> Any:
    """The protected form of a function. See Note [Around the operation and around its function]."""
    refuse_view(view)
    if hasattr(view, "_ninja_operation"):
        raise IdempotencyConfigurationError(
            f"idempotent_operation stands above the route decorator of {view.__qualname__}, or in add_decorator."
            f"{WAY_OUT}"
        )

    def view_call(unprotected: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NinjaViewCall:
        request = args[0] if args else None
        if not isinstance(request, HttpRequest):
            raise IdempotencyConfigurationError(f"{unprotected!r} was called without a Ninja request.{WAY_OUT}")
        operation: Operation | None = getattr(request, RUNNING, None)
        if operation is None or protected not in unwrapped(operation.view_func):
            raise IdempotencyConfigurationError(
                f"idempotent_operation does not stand below an operation behind {request.path!r}, or a decorator "
                f"between them lacks functools.wraps. For a Django view use idempotent.{WAY_OUT}"
            )
        call = NinjaViewCall(request, unprotected, args, kwargs, getattr(operation, MARK).options)
        call.operation = operation
        return call

    protected: Any = wraps(view)(protected_form(view, view_call))
    # Annotations that are strings are resolved in the module of the function, not in ours.
    protected.__signature__ = get_typed_signature(view)
    declare(protected, Declaration((layer,)))
    others = getattr(view, "_ninja_contribute_to_operation", ())
    # A new list: wraps() has shared the old one with the unprotected function. Ours is the innermost.
    protected._ninja_contribute_to_operation = []
    decorate_view(partial(_around, layer))(protected)
    protected._ninja_contribute_to_operation += others
    return protected


def _around(layer: Idempotency, run: Any) -> Any:
    """Around the whole operation, once for each mount of its router."""
    operation: Operation = run.__self__
    methods = sorted(set(operation.methods) - SAFE_METHODS)
    name = operation.view_func.__qualname__
    if not methods:
        raise IdempotencyConfigurationError(
            f"{name} answers {', '.join(operation.methods)}, which must not change anything: nothing to protect. "
            "Remove idempotent_operation."
        )
    if getattr(operation, "stream_format", None) is not None:
        raise IdempotencyConfigurationError(
            f"{name} streams its items after the answer has begun, when there is no transaction any more. "
            "idempotent_operation cannot protect it."
        )
    declare(operation, Declaration((layer, for_methods(*methods))))  # the decorator on a PUT route protects PUT

    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        vars(request).update({RUNNING: operation, UNANSWERED: None})
        return _answered(request, run(request, *args, **kwargs))

    async def aguarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        vars(request).update({RUNNING: operation, UNANSWERED: None})
        return _answered(request, await run(request, *args, **kwargs))

    return wraps(run)(aguarded if operation.is_async else guarded)


def _answered(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    unanswered: Exception | None = getattr(request, UNANSWERED)
    if unanswered is not None:
        raise unanswered
    return response


class NinjaViewCall(ViewCall):
    """Runs below `Operation.run`: the caller is authenticated and within the throttles, the parameters are parsed."""

    operation: Operation

    def authenticated(self) -> str | None:
        """The caller that the operation's own authentication found."""
        auth = getattr(self.request, "auth", None)
        if not auth or getattr(auth, "is_authenticated", True) is False:
            return None
        if isinstance(auth, str):
            # Django Ninja does not keep which authenticator has set it: user "17", or partner "17"? Its own for
            # sessions set a user.
            callbacks = self.operation.auth_callbacks
            count = sum(type(callback).__module__ != "ninja.security.session" for callback in callbacks)
            if count > 1:
                raise IdempotencyConfigurationError(
                    f"request.auth is a str, which does not tell which of the {count} authenticators of this operation "
                    "gave it. Return a model instance from each authenticator, or pass scope=callable(request)."
                )
        return auth_scope(auth)

    def ready(self, response: Any) -> HttpResponseBase:
        """Convert the result as the operation itself would, but before the COMMIT: a schema may refuse the result."""
        # The `response` parameter of the operation carries the headers that the operation set.
        temporal = self.kwargs.get(self.operation.signature.response_arg or "")
        return self.render(converted(self.operation, self.request, response, temporal))

    def answer(self, error: Exception) -> Finished[HttpResponseBase]:
        """The exception handlers of the API, in a transaction of their own."""
        try:
            with transaction.atomic(using=alias_of(self.options)):
                return self.judge(self.render(self.operation.api.on_exception(self.request, error)))
        except Exception as unanswered:  # noqa: BLE001 (raised again, see `_answered`)
            setattr(self.request, UNANSWERED, unanswered)
            return Finished(value=HttpResponse(status=500), verdict=Verdict.ROLL_BACK, reason=describe(unanswered))


def converted(operation: Operation, request: HttpRequest, result: Any, temporal: Any = None) -> Any:
    """The result of an operation as a response. `temporal` carries headers."""
    if not isinstance(temporal, HttpResponse):
        temporal = operation.api.create_temporal_response(request)
    return operation._result_to_response(request, result, temporal)


# --- what the engine asks, see `engine.declare.registry.frameworks`


def declared(callback: Any) -> Iterator[tuple[str, str, Declaration | None]] | None:
    """The unsafe methods of the path whose `PathView` the URL's callback holds in its closure."""
    enclosed = getclosurevars(callback).nonlocals.values() if isfunction(callback) else ()
    path_view = next((value for value in enclosed if isinstance(value, PathView)), None)
    if path_view is None:
        return None
    return (
        (method, dotted_name(operation.view_func), getattr(operation, MARK, None))
        for operation in path_view.operations
        for method in operation.methods
        if method not in SAFE_METHODS
    )


def view_call(*args: Any) -> None:
    """Django Ninja hands out Django's own requests, and has a decorator of its own."""


def response(returned: Any, declaration: Declaration) -> HttpResponseBase | None:
    """What an operation may return, its `reconcile` may return. Django Ninja needs a request: an empty one."""
    if not isinstance(declaration.target, Operation):
        return None
    request = HttpRequest()
    request.method = next(method for method in declaration.target.methods if method not in SAFE_METHODS)
    found: HttpResponseBase = converted(declaration.target, request, returned)
    return found
