"""The `idempotent_operation` decorator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, Unpack, overload

from django.http import HttpRequest
from ninja.operation import Operation
from ninja.signature.utils import get_typed_signature

from ..engine.conf import SAFE_METHODS, Idempotency, Keywords, as_options, for_methods, resolve
from ..engine.declare.callables import unwrapped
from ..engine.declare.placement import NINJA_ORDER, refuse_view
from ..engine.declare.wrapping import protected_form
from ..exceptions import IdempotencyConfigurationError
from .view_call import NinjaViewCall, operation_of

F = TypeVar("F", bound=Callable[..., Any])
HANDLER = "_idempotency_handler"
"""On a protected function: its `_Handler`."""


@overload
def idempotent_operation(view: F, /) -> F: ...


@overload
def idempotent_operation(options: Idempotency | None = None, /, **kwargs: Unpack[Keywords]) -> Callable[[F], F]: ...


def idempotent_operation(view: Any = None, /, **options: Any) -> Any:
    """Run an operation of Django Ninja at most once for each idempotency key, and replay its response to retries.

    Opens the transaction that the operation runs in. Inside an outer `atomic()`, such as that of ATOMIC_REQUESTS, it is
    a savepoint. An exception rolls it back, and the answer of the API's exception handlers is kept if it is final.

    Use it bare, with options as keyword arguments, or with an `Idempotency`. Below the route decorator it protects the
    methods of that route. In `add_decorator(…, mode="operation")` of an API or a router it protects POST and PATCH, and
    the options nearest to the operation win. Authentication, throttling and parsing come first, for a replay too.

    Raises:
        IdempotencyConfigurationError: where it could not protect the operation. Raised when the operation is decorated
            or routed if that can be known then, else on the first request, before the operation runs.
    """
    if isinstance(view, Idempotency) or view is None:
        layer = as_options(options) if view is None else view
        if view is not None and options:
            raise IdempotencyConfigurationError(
                "pass an Idempotency or keyword options to idempotent_operation, not both."
            )

        def idempotent_operation_with_options(view: F) -> F:
            return _protect(view, layer)

        return idempotent_operation_with_options
    if options:
        raise IdempotencyConfigurationError("pass options to idempotent_operation by keyword only, before the view.")
    return _protect(view, Idempotency())


def _protect(view: F, layer: Idempotency) -> F:
    refuse_view(view)
    by_ninja = _called_by_ninja()
    if not by_ninja and hasattr(view, "_ninja_operation"):
        raise IdempotencyConfigurationError(
            f"idempotent_operation stands above the route decorator of {view.__qualname__}, which has taken the "
            f"function already. Put it below:\n{NINJA_ORDER}"
        )
    inner: _Handler | None = getattr(view, HANDLER, None)
    if by_ninja and inner is not None and inner.protected is view:
        handler = _Handler(view=inner.view, own=inner.own, inherited=(layer, *inner.inherited), routed=inner.routed)
    elif by_ninja:
        handler = _Handler(view=view, inherited=(layer,))
    else:
        handler = _Handler(view=view, own=(layer,))

    protected: Any = wraps(handler.view)(protected_form(handler.view, handler.call))
    # Annotations that are strings are resolved in the module of the function, not in ours.
    protected.__signature__ = get_typed_signature(handler.view)
    # A new list: wraps() has shared the old one with the unprotected function.
    protected._ninja_contribute_to_operation = [*getattr(view, "_ninja_contribute_to_operation", ()), handler.route]
    setattr(protected, HANDLER, handler)
    handler.protected = protected
    return protected  # type: ignore[no-any-return]


def _called_by_ninja() -> bool:
    """Whether `add_decorator` decorates, and not a decorator that stands above the route decorator.

    Both pass a function that is an operation already. Only `add_decorator` uses the function that it gets back.
    """
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        if frame.f_globals.get("__name__") == "ninja.router":
            return True
        frame = frame.f_back
    return False


@dataclass(slots=True, kw_only=True)
class _Handler:
    """What is known of a protected function.

    own: the options on the function itself.
    inherited: the options of its router and API, nearest first.
    routed: the methods of its routes; empty if only `add_decorator` protects the function.
    """

    view: Callable[..., Any]
    own: tuple[Idempotency, ...] = ()
    inherited: tuple[Idempotency, ...] = ()
    routed: set[str] = field(default_factory=set)
    protected: Any = None

    def route(self, operation: Operation) -> None:
        """Django Ninja makes the function an operation."""
        _refuse_stream(operation)
        methods = set(operation.methods) - SAFE_METHODS
        if not methods:
            raise IdempotencyConfigurationError(
                f"{self.view.__qualname__} answers {', '.join(operation.methods)}, which must not change anything: "
                "nothing to protect. Remove idempotent_operation."
            )
        self.routed |= methods

    def call(self, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> NinjaViewCall:
        request = args[0] if args else None
        if not isinstance(request, HttpRequest):
            raise IdempotencyConfigurationError(
                f"{self.view!r} was called without a request. idempotent_operation protects functions that Django "
                f"Ninja calls:\n{NINJA_ORDER}"
            )
        operation = operation_of(request)
        if self.protected not in unwrapped(operation.view_func):
            raise IdempotencyConfigurationError(
                f"idempotent_operation does not stand below the operation of {request.path!r}, or a decorator between "
                f'them lacks functools.wraps. Do not use it in decorate_view or mode="view":\n{NINJA_ORDER}'
            )
        _refuse_stream(operation)
        call = NinjaViewCall(request=request, view=view, args=args, kwargs=kwargs, options=self.options())
        call.ninja_operation = operation
        return call

    def options(self) -> Idempotency:
        return resolve(*self.layers())

    def layers(self) -> tuple[Idempotency, ...]:
        """The option layers, nearest first. The decorator on a PUT route protects PUT."""
        routed = (for_methods(*sorted(self.routed)),) if self.routed else ()
        return *self.own, *routed, *self.inherited


def _refuse_stream(operation: Operation) -> None:
    if getattr(operation, "stream_format", None) is not None:
        raise IdempotencyConfigurationError(
            f"{operation.view_func.__qualname__} streams its items after the answer has begun, when there is no "
            "transaction any more. idempotent_operation cannot protect it."
        )
