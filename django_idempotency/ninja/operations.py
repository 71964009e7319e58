"""The `idempotent_operation` decorator, and the adapter for Django Ninja.

# Note [Around the operation and around its function]
In Django Ninja, `Operation.run` authenticates and throttles the caller, parses the parameters, and then calls the
operation's function. The decorator adds two wrappers. The inner wrapper protects the function. The outer wrapper
encloses `Operation.run`, and tells the inner one which operation is running. If one of the API's exception handlers
raises an exception, the inner wrapper stores it, and the outer one raises it again. If the inner wrapper raised it
itself, `Operation.run` would pass it to the same handlers a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from inspect import getclosurevars, iscoroutinefunction, isfunction
from itertools import takewhile
from typing import Any, TypeVar, Unpack, cast, overload

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja.decorators import decorate_view
from ninja.operation import Operation, PathView
from ninja.signature.utils import get_typed_signature

from ..engine.conf import SAFE_METHODS, Idempotency, Keywords, for_methods
from ..engine.declare.decorators import protected_form
from ..engine.declare.placement import NINJA_ORDER, is_routed, refuse_view
from ..engine.declare.registry import MARK, Declaration, declare, given
from ..engine.declare.wrappers import dotted_name, unwrapped
from ..engine.execution.bridge import synchronous
from ..engine.protocol.error_text import describe
from ..engine.protocol.outcomes import Finished, Verdict
from ..engine.request.adapters import RUNNING, Adapter
from ..engine.request.callers import HandedOn, is_text, logged_in, name_among, user_of
from ..engine.request.calls import Call
from ..engine.request.view_call import ViewCall
from ..exceptions import IdempotencyConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
WAY_OUT = f" Put it below the route decorator:\n{NINJA_ORDER}"
PAGINATION = frozenset({"ninja.pagination", "ninja_extra.pagination.operations"})
"""The modules of decorators that divide what an operation returns into pages."""
UNANSWERED = "_idempotency_unanswered"
"""The request attribute that holds an exception raised by the API's handlers."""


@overload
def idempotent_operation(view: F, /) -> F: ...


@overload
def idempotent_operation(options: Idempotency | None = None, /, **kwargs: Unpack[Keywords]) -> Callable[[F], F]: ...


def idempotent_operation(view: Any = None, /, **options: Any) -> Any:
    """Commit a Django Ninja operation's writes only once for each idempotency key, and replay its final response.

    The operation runs in a transaction that the decorator opens, or in a savepoint inside an outer `atomic()`, for
    example with ATOMIC_REQUESTS. If it raises an exception, its writes are rolled back before the API's exception
    handlers build the response. That response is stored if it is final.

    Put `idempotent_operation` below the route decorator. You can use it without parentheses, or pass options as keyword
    arguments or as a single `Idempotency` object. It protects the route's unsafe HTTP methods. Authentication,
    throttling and parsing run first, even before a replay.

    Raises:
        IdempotencyConfigurationError: the operation cannot be protected. Raised when it is decorated or routed, or else
            on the first request, before the operation runs.
    """
    layer, view = given("idempotent_operation", view, options)
    return partial(_protect, layer) if view is None else _protect(layer, view)


def _protect(layer: Idempotency, view: Any) -> Any:
    """Protect an operation's function. See Note [Around the operation and around its function]."""
    if is_routed(view):
        raise IdempotencyConfigurationError(
            f"idempotent_operation sits above the route decorator of {view.__qualname__}, or in add_decorator.{WAY_OUT}"
        )
    refuse_view(view)

    def make_call(unprotected: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewCall:
        request = getattr(_context(args), "request", args[0] if args else None)
        if not isinstance(request, HttpRequest):
            raise IdempotencyConfigurationError(f"{unprotected!r} was called without a Ninja request.{WAY_OUT}")
        operation: Operation | None = getattr(request, RUNNING, None)
        if operation is None or protected not in unwrapped(operation.view_func):
            raise IdempotencyConfigurationError(
                f"idempotent_operation is not below the route decorator of an operation behind {request.path!r}, or a "
                f"decorator between them lacks functools.wraps. For a Django view use idempotent.{WAY_OUT}"
            )
        call = ViewCall(request, unprotected, args, kwargs, getattr(operation, MARK).options)
        call.adapter = ADAPTER
        return call

    protected: Any = wraps(view)(protected_form(view, make_call))
    # String annotations must be resolved in the module of the decorated function, not in this one.
    protected.__signature__ = get_typed_signature(view)
    declare(protected, Declaration((layer,)))
    others = getattr(view, "_ninja_contribute_to_operation", ())
    # Start a new list, because `wraps()` copied a reference to the view's own list. Our hook comes first, so that
    # no other wrapper comes between ours and `Operation.run`.
    protected._ninja_contribute_to_operation = []
    decorate_view(partial(_around, layer, protected))(protected)
    protected._ninja_contribute_to_operation += others
    return protected


def _around(layer: Idempotency, protected: Any, run: Any) -> Any:
    """Return a wrapper around `Operation.run`. Called for each place where a project mounts the router."""
    operation: Operation = run.__self__
    methods = sorted(set(operation.methods) - SAFE_METHODS)
    name = operation.view_func.__qualname__
    if not methods:
        raise IdempotencyConfigurationError(
            f"{name} answers {', '.join(operation.methods)}, which must not change anything: nothing to protect. "
            "Remove idempotent_operation."
        )
    above = takewhile(lambda level: level is not protected, unwrapped(operation.view_func))
    if any(getattr(level, "__globals__", {}).get("__name__") in PAGINATION for level in above):
        raise IdempotencyConfigurationError(
            f"@paginate sits above idempotent_operation on {name}: it would divide the stored response into pages. "
            "Put @paginate below idempotent_operation."
        )
    if getattr(operation, "stream_format", None) is not None:
        raise IdempotencyConfigurationError(
            f"{name} streams its items after the answer has begun, when there is no transaction any more. "
            "idempotent_operation cannot protect it."
        )
    declare(operation, Declaration((layer, for_methods(*methods))))  # by default, all unsafe methods are protected

    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        vars(request).update({RUNNING: operation, UNANSWERED: None})
        return _answered(request, run(request, *args, **kwargs))

    async def aguarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        vars(request).update({RUNNING: operation, UNANSWERED: None})
        return _answered(request, await run(request, *args, **kwargs))

    # Django Ninja 1.5 sets `operation.is_async` only after calling this function.
    return wraps(run)(aguarded if iscoroutinefunction(run) else guarded)


def _answered(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    unanswered: Exception | None = getattr(request, UNANSWERED)
    if unanswered is not None:
        raise unanswered
    return response


def _context(args: tuple[Any, ...]) -> Any:
    """Return the context of a django-ninja-extra controller, or None. A controller is made for one request."""
    return None if not args or isinstance(args[0], HttpRequest) else getattr(args[0], "context", None)


def converted(operation: Operation, request: HttpRequest, result: Any, temporal: Any = None) -> Any:
    """Return an operation's result as a response, with the headers that the operation set on `temporal`."""
    if not isinstance(temporal, HttpResponse):
        temporal = operation.api.create_temporal_response(request)
    return operation._result_to_response(request, result, temporal)


class NinjaAdapter(Adapter):
    """An operation's function is called by `Operation.run`, after authentication, throttling and parsing.

    The request is Django's own, with the operation as an attribute.
    """

    def handed_on(self, request: Any) -> HandedOn:
        """Return `request.auth` if it is a user or a row, else the user whom the authenticator has set with it."""
        auth = getattr(request, "auth", None)
        if not auth or getattr(auth, "is_authenticated", True) is False:
            return super().handed_on(request)
        if hasattr(auth, "is_authenticated"):
            return HandedOn(user=auth)
        told = is_text(auth)
        user = None if hasattr(auth, "pk") else user_of(request)
        # A session's user may use several tokens; each token is then a separate caller.
        if user is not None and not (told and logged_in(request, user)):
            return HandedOn(user=user, token=auth)
        # The string "17" can mean shop 17 or partner 17, and Ninja does not say which authenticator returned it.
        # Another API with the same `operation` may have the other authenticator. Ninja's session authenticators never
        # return a string.
        callbacks = _operation_of(request).auth_callbacks if told else ()
        others = [one for one in callbacks if type(one).__module__ != "ninja.security.session"]
        return HandedOn(token=auth, authenticator=_authenticator(request, auth, others) if others else "")

    def response(self, call: Call, returned: Any) -> HttpResponseBase:
        """Convert the result as Django Ninja does, before the COMMIT, because a schema can reject it."""
        operation: Operation = getattr(call.request, RUNNING)
        # Headers may be set on an `HttpResponse` parameter, or on the response in a controller's context.
        parameter = call.kwargs.get(operation.signature.response_arg or "")
        temporal = getattr(_context(call.args), "response", parameter)
        return super().response(call, converted(operation, call.request, returned, temporal))

    def reconciled(self, call: Call, returned: Any) -> HttpResponseBase:
        return self.response(call, returned)  # an operation may return any value

    def answer(self, call: Call, error: Exception) -> Finished[HttpResponseBase]:
        """Return the response from the API's exception handlers, which run in a new transaction."""
        api = getattr(call.request, RUNNING).api
        to_response = super().response
        try:
            return call.in_own_transaction(lambda: call.judge(to_response(call, api.on_exception(call.request, error))))
        # Raised again by `_answered`.
        except Exception as unanswered:  # noqa: BLE001
            setattr(call.request, UNANSWERED, unanswered)
            return Finished(value=HttpResponse(status=500), verdict=Verdict.ROLL_BACK, reason=describe(unanswered))

    def deliver(self, call: Call, response: Any, *, replayed: bool, own: bool = False) -> HttpResponseBase:
        """See the base class. If no handler has answered an exception, another worker's response replaces it."""
        if not own:
            setattr(call.request, UNANSWERED, None)
        return super().deliver(call, response, replayed=replayed, own=own)

    # --- without a request

    def operations(self, callback: Any) -> Iterator[tuple[str, str, Declaration | None]] | None:
        """See the base class. A URL's callback is a closure over the `PathView` with all its operations."""
        if (path_view := _path_view(callback)) is None:
            return None
        return (
            (method, dotted_name(operation.view_func), getattr(operation, MARK, None))
            for operation in path_view.operations
            for method in operation.methods
            if method not in SAFE_METHODS
        )

    def recovered(self, returned: Any, target: Any) -> HttpResponseBase:
        """Convert the value as if the operation had returned it, with an empty request object."""
        if not isinstance(target, Operation):
            return super().recovered(returned, target)
        request = HttpRequest()
        request.method = next(method for method in target.methods if method not in SAFE_METHODS)
        response: HttpResponseBase = converted(target, request, returned)
        return response


def _path_view(callback: Any) -> PathView | None:
    enclosed = getclosurevars(callback).nonlocals.values() if isfunction(callback) else ()
    return next((value for value in enclosed if isinstance(value, PathView)), None)


def _operation_of(request: Any) -> Operation:
    """Return the operation that runs, protected or not."""
    if (operation := getattr(request, RUNNING, None)) is None:
        path_view = _path_view(request.resolver_match.func)
        operations = () if path_view is None else path_view.operations
        operation = next(each for each in operations if request.method in each.methods)
    return cast(Operation, operation)


def _authenticator(request: Any, auth: Any, callbacks: Sequence[Callable[[Any], Any]]) -> str:
    """Return the name of the authenticator that returns `auth`.

    If there are several authenticators, they are called again, in Django Ninja's order. Raises
    `IdempotencyConfigurationError` if none of them returns `auth` again.
    """
    for callback in callbacks:
        if len(callbacks) == 1 or synchronous(callback)(request) == auth:
            return name_among(callbacks, dotted_name, callback)
    raise IdempotencyConfigurationError(
        f"request.auth is a {type(auth).__name__}, which does not tell which of the {len(callbacks)} authenticators of "
        "this operation returned it. Return a model instance from each authenticator, or pass scope=callable(request)."
    )


ADAPTER = NinjaAdapter()
