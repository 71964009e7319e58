"""The `idempotent` decorator."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from importlib import import_module
from typing import Any, TypeVar, Unpack, overload

from django.http import HttpRequest

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, Keywords, as_options, resolve
from ..request.atomic_requests import TakenOver
from ..request.view_call import ViewCall
from .placement import method_name, refuse_class, refuse_routing, refuse_view
from .wrapping import guard

F = TypeVar("F", bound=Callable[..., Any])
VERBS = frozenset({"post", "put", "patch", "delete"})
MARK = "_idempotency_layers"
"""On a protected callable: its option layers, nearest first."""


@overload
def idempotent(view: F, /) -> F: ...


@overload
def idempotent(options: Idempotency | None = None, /, **kwargs: Unpack[Keywords]) -> Callable[[F], F]: ...


def idempotent(view: Any = None, /, **options: Any) -> Any:
    """Run a view at most once for each idempotency key, and replay its response to retries.

    Use it bare, with the options of `Idempotency` as keyword arguments, or with an `Idempotency`. It protects a
    function view, a handler method of a class-based or REST framework view, an `@action` method, and a function under
    `@api_view`; `method_decorator` works. It stands below everything that decides who the caller is.

    Opens the transaction that the view runs in (inside an outer `atomic()`: a savepoint).
    Raises `IdempotencyConfigurationError` where it could not protect the view, at decoration if that can be known
    then, else on the first request, before the view runs.
    """
    if isinstance(view, Idempotency) or view is None:
        layer = as_options(options) if view is None else view
        if view is not None and options:
            raise IdempotencyConfigurationError("pass an Idempotency or keyword options to idempotent, not both.")

        def idempotent_with_options(view: F) -> F:
            return _protect(view, (layer,))

        return idempotent_with_options
    if options:
        raise IdempotencyConfigurationError("pass options to idempotent by keyword only, before the view.")
    return _protect(view, ())


def _protect(view: F, layers: tuple[Idempotency, ...]) -> F:
    refuse_view(view)
    if (verb := method_name(view)) in VERBS:
        # Whoever decorates a method called put wants PUT protected.
        layers = (*layers, _only(verb.upper()))

    def call_of(unprotected: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewCall:
        call = _view_call(resolve(*layers), unprotected, args, kwargs)
        if call.request.method in call.options.methods:
            refuse_class(view, args)
        return call

    attributes: Any = wraps(view)(guard(view, call_of))
    setattr(attributes, MARK, layers)
    refuse_routing(attributes)
    opted_out = getattr(view, "_non_atomic_requests", ())
    attributes._non_atomic_requests = TakenOver(opted_out, lambda: resolve(*layers))
    return attributes  # type: ignore[no-any-return]


@lru_cache(maxsize=len(VERBS))
def _only(verb: str) -> Idempotency:
    return Idempotency(methods=(verb,))


def _view_call(
    options: Idempotency, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ViewCall:
    """Find the request: the first argument of a function, the second of a method."""
    if args and isinstance(args[0], HttpRequest):
        return ViewCall(args[0], view, args, kwargs, options)
    for candidate in (*args[:2], kwargs.get("request")):
        if isinstance(candidate, HttpRequest):
            return ViewCall(candidate, view, args, kwargs, options)
        if isinstance(getattr(candidate, "_request", None), HttpRequest):
            # A request of the REST framework. Imported by name: only a project that has it comes here.
            module = import_module("django_idempotency.rest_framework.view_call")
            return module.RestFrameworkViewCall.of(  # type: ignore[no-any-return]
                candidate, view=view, args=args, kwargs=kwargs, options=options
            )
    raise IdempotencyConfigurationError(
        f"{view!r} was called without a request. idempotent protects views: functions that take a request first, or "
        "methods that take it after self."
    )
