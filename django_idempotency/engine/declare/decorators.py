"""The decorators `idempotent` and `once`, for `def` and `async def` functions alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, Unpack, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, Keywords, OnceKeywords, Options, resolve
from ..execution.bridge import in_thread, synchronous
from ..execution.once import (
    Key,
    arun_once,
    once_options,
    operation_name,
    patience,
    run_once,
    warn_of_gateways,
)
from ..request.adapters import adapter_of
from ..request.atomic_requests import refuse_asynchronous, take_over
from ..request.pipeline import handle
from ..request.unprotected import apass_through
from ..request.view_call import ViewCall
from .placement import NINJA, refuse_class, refuse_routing, refuse_view
from .registry import Declaration, declare, given, register, with_verb
from .wrappers import method_name

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
MakeCall = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ViewCall]


@overload
def idempotent(view: F, /) -> F: ...


@overload
def idempotent(options: Idempotency | None = None, /, **kwargs: Unpack[Keywords]) -> Callable[[F], F]: ...


def idempotent(view: Any = None, /, **options: Any) -> Any:
    """Commit a view's writes only once for each idempotency key, and replay its final response to retries.

    The view runs in a transaction that the decorator opens, or in a savepoint inside an outer `atomic()`: the key, the
    writes and the response commit together, or not at all. Its code can run again, for example after a crash. With
    `lease`, each step commits on its own, and the promises are those of the steps.

    Put it on a function view, a handler method, an `@action` method or an `@api_view` function. It takes no arguments,
    options as keyword arguments, or one `Idempotency` object. Django's `method_decorator` can apply it. It must be
    below every decorator that checks the caller, such as `login_required`.

    Raises:
        IdempotencyConfigurationError: the view cannot be protected. Raised at decoration if possible, otherwise on the
            first request, before the view runs.
    """
    layer, view = given("idempotent", view, options)
    if view is not None:
        return _protect((), view)
    # Registered here, once at import, because `method_decorator` calls the partial again on each request.
    register(Declaration((layer,)))
    return partial(_protect, (layer,))


def _protect(layers: tuple[Idempotency, ...], view: F) -> F:
    refuse_view(view)
    layers, is_dispatch = with_verb(layers, method_name(view)), getattr(view, "__name__", "") == "dispatch"

    def make_call(unprotected: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewCall:
        options = resolve(*layers)
        if args and isinstance(args[0], HttpRequest):
            call = ViewCall(args[0], unprotected, args, kwargs, options)
        else:
            call = call_of(options, unprotected, args, kwargs)
        if is_dispatch:
            refuse_asynchronous(call.request)
        callback = getattr(call.request.resolver_match, "func", None)
        if (is_dispatch or getattr(callback, "__module__", "") == NINJA) and call.method in options.methods:
            refuse_class(view, args)
        return call

    protected: Any = wraps(view)(protected_form(view, make_call))
    declare(protected, Declaration(layers))
    refuse_routing(protected)
    take_over(protected, lambda: layers)
    return protected  # type: ignore[no-any-return]


def call_of(options: Options, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewCall:
    """Return the `ViewCall` of a protected view.

    The request is one of the first two arguments, or the keyword argument `request`.
    """
    candidates = (*args[:2], kwargs.get("request"))
    for candidate in candidates:
        if (adapter := adapter_of(candidate)).is_request(candidate):
            call = ViewCall(adapter.django_request(candidate), view, args, kwargs, options, asked_with=candidate)
            call.adapter = adapter
            return call
    raise IdempotencyConfigurationError(
        f"{view!r} was called without a request. idempotent protects views: functions that take a request first, or "
        "methods that take it after self."
    )


def protected_form(view: Callable[..., Any], make_call: MakeCall) -> Callable[..., Any]:
    """Return a function that runs a view with protection. See `in_thread` for how an `async def` view runs.

    Args:
        make_call: makes a `ViewCall` from the view, its positional arguments and its keyword arguments.
    """

    def protected(*args: Any, **kwargs: Any) -> Any:
        return handle(make_call(view, args, kwargs))

    async def aprotected(*args: Any, **kwargs: Any) -> Any:
        call = make_call(view, args, kwargs)
        if call.method not in call.options.methods:
            return await apass_through(call)

        def run(form: Callable[..., Any]) -> Any:
            call.view = form
            return handle(call)

        return await in_thread(run, view)

    return aprotected if iscoroutinefunction(view) else protected


# --- without a request


def once(
    *,
    scope: str | Callable[..., str],
    key: Callable[..., Key],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[OnceKeywords],
) -> Callable[[Callable[..., T]], Callable[..., T]]:  # callers leave `operation` out
    """Commit the work of a function, such as a task or an event handler, only once for each key.

    The function can be `def` or `async def`. Every call with the same key returns the result of the first run. With the
    `lease` option, the function is always passed an `Operation` as the keyword argument `operation`; without `lease`,
    it is passed one only if it has a required parameter named `operation`. Callers leave `operation` out. `run_once`
    describes the transaction in which the function runs.

    While another worker is running the same key, a call waits for the result for up to 60 seconds, or for the
    length of the lease if that is longer. After that, it raises `OperationInProgress`. To change how long it waits, use
    `wait=` or the `WAIT` setting; with `wait=0`, the exception is raised immediately. Calls inside your own
    transaction never wait.

    Args:
        scope: a string, or a callable that is passed the function's arguments.
        key: a callable that is passed these arguments and returns the key: a str, an int or a UUID.
        payload: a callable that is passed these arguments and returns the payload. With None, payloads are not
            compared.
        options: the options of `run_once`.

    Raises:
        NotRun: when the function is called; see `run_once`.
        IdempotencyConfigurationError: for options that cannot work, when the function is decorated.
    """
    if not scope or not callable(key):
        raise IdempotencyConfigurationError(
            f"once(scope={scope!r}, key={key!r}) needs to know the owner and the key of each call. Write "
            '@once(scope="shop", key=lambda event: event["id"]) above the function, for example.'
        )
    layer = once_options(options)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = operation_name(function, options.get("operation"))
        if {"lease", "ttl"} <= layer.given().keys():  # the settings are known only when the function runs
            warn_of_gateways(name, layer)

        def called(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            work = partial(synchronous(function), *args, **kwargs)
            has_steps = resolve(layer).runner.has_steps
            return run(
                (lambda operation: work(operation=operation)) if has_steps else work,
                **options | {"operation": name, "wait": patience(layer)},
                scope=scope(*args, **kwargs) if callable(scope) else scope,
                key=key(*args, **kwargs),
                payload=None if payload is None else payload(*args, **kwargs),
            )

        @wraps(function)
        def protected(*args: Any, **kwargs: Any) -> Any:
            return called(run_once, args, kwargs).value

        @wraps(function)
        async def aprotected(*args: Any, **kwargs: Any) -> Any:
            return (await called(arun_once, args, kwargs)).value

        outer: Any = aprotected if iscoroutinefunction(function) else protected
        declare(outer, Declaration((Idempotency(operation=name), layer), once=True))
        return outer  # type: ignore[no-any-return]

    return decorate
