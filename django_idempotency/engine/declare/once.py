"""The `once` decorator: `run_once` for a function that is called in many places."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, Unpack, overload

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, OnceKeywords, UnleasedKeywords, resolve
from ..execution.bridge import synchronous
from ..execution.once import Key, arun_once, once_options, operation_name, run_once
from .registry import Declaration, declare

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@overload
def once(
    *,
    scope: str | Callable[..., str],
    key: Callable[..., Key],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[UnleasedKeywords],
) -> Callable[[F], F]: ...


@overload
def once(
    *,
    scope: str | Callable[..., str],
    key: Callable[..., Key],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[OnceKeywords],
) -> Callable[[Callable[..., T]], Callable[..., T]]: ...  # callers leave `operation` out


def once(
    bare: object = None,
    /,
    *,
    scope: str | Callable[..., str] = "",
    key: Callable[..., Key] | None = None,
    payload: Callable[..., Any] | None = None,
    **options: Unpack[OnceKeywords],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that must do its work once for each key, such as a task or the handler of an event.

    Works on `def` and `async def`. The function returns the result of its first run. With `lease` it gets the
    `Operation` as the keyword argument `operation`; without, only if it has such a parameter, and the caller leaves it
    out. See `run_once` for the transaction.

    Args:
        scope: a string, or a callable with the function's own arguments.
        key: such a callable that returns the key: a str, an int or a UUID.
        payload: such a callable, or None to compare nothing.
        options: as for `run_once`.

    Raises:
        NotRun: as `run_once` does, when the function is called.
        IdempotencyConfigurationError: for options that cannot work, when the function is decorated.
    """
    if bare is not None or not scope or not callable(key):
        raise IdempotencyConfigurationError(
            "once needs to know the owner and the key of each call, by keyword. Write "
            '@once(scope="shop", key=lambda event: event["id"]) above the function, for example.'
        )
    layer = once_options(options)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = operation_name(function, options.get("operation"))

        def called(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            work = partial(synchronous(function), *args, **kwargs)
            leased = resolve(layer).lease is not None
            return run(
                (lambda operation: work(operation=operation)) if leased else work,
                **options | {"operation": name},
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
        declare(outer, Declaration((Idempotency(operation=name), layer), "once"))
        return outer  # type: ignore[no-any-return]

    return decorate
