"""The `idempotent` decorator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, Unpack, overload

from django.http import HttpRequest

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, Keywords, resolve
from ..request.pipeline import take_over
from ..request.view_call import ViewCall
from . import frameworks
from .callables import method_name
from .placement import refuse_class, refuse_routing, refuse_view
from .registry import Declaration, declare, given, register, with_verb
from .wrapping import protected_form

F = TypeVar("F", bound=Callable[..., Any])


@overload
def idempotent(view: F, /) -> F: ...


@overload
def idempotent(options: Idempotency | None = None, /, **kwargs: Unpack[Keywords]) -> Callable[[F], F]: ...


def idempotent(view: Any = None, /, **options: Any) -> Any:
    """Run a view at most once for each idempotency key, and replay its response to retries.

    Opens the transaction that the view runs in. Inside an outer `atomic()` that is a savepoint.

    Use it bare, with options as keyword arguments, or with an `Idempotency`, on a function view, a handler method, an
    `@action` method, or a function under `@api_view`; `method_decorator` works. It must stand below everything that
    decides who the caller is.

    Raises:
        IdempotencyConfigurationError: where it could not protect the view. Raised at decoration if that can be known
            then, else on the first request, before the view runs.
    """
    layer, view = given("idempotent", view, options)
    if view is not None:
        return _protect((), view)
    register(Declaration((layer,), "django"))  # now, because method_decorator decorates on each request
    return partial(_protect, (layer,))


def _protect(layers: tuple[Idempotency, ...], view: F) -> F:
    refuse_view(view)
    layers, is_dispatch = with_verb(layers, method_name(view)), getattr(view, "__name__", "") == "dispatch"

    def make_call(unprotected: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewCall:
        options, request = resolve(*layers), args[0] if args else None
        if isinstance(request, HttpRequest):
            call = ViewCall(request, unprotected, args, kwargs, options)
        else:
            call = _view_call(options, unprotected, args, kwargs)
        if (is_dispatch or "ninja" in sys.modules) and call.method in options.methods:
            refuse_class(view, args)
        return call

    protected: Any = wraps(view)(protected_form(view, make_call))
    declare(protected, Declaration(layers, "django"))
    refuse_routing(protected)
    take_over(protected, lambda: layers)
    return protected  # type: ignore[no-any-return]


def _view_call(
    options: Idempotency, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ViewCall:
    """Find the request: the second argument of a method, or one by name. Frameworks have requests of their own."""
    candidates = (*args[:2], kwargs.get("request"))
    for candidate in candidates:
        if isinstance(candidate, HttpRequest):
            return ViewCall(candidate, view, args, kwargs, options)
    for framework in frameworks.in_use():
        for candidate in candidates:
            call: ViewCall | None = framework.view_call(candidate, view, args, kwargs, options)
            if call is not None:
                return call
    raise IdempotencyConfigurationError(
        f"{view!r} was called without a request. idempotent protects views: functions that take a request first, or "
        "methods that take it after self."
    )
