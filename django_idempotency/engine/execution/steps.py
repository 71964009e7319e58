"""What a step is given: a name, and a function that fits the verb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import Parameter, isawaitable, iscoroutinefunction, signature
from typing import Any

from ...exceptions import IdempotencyConfigurationError
from .bridge import awaiting

MAX_NAME = 100
"""Characters: the width of the column."""


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise IdempotencyConfigurationError(
            f"{name!r} is no name for a step: give a str of 1 to {MAX_NAME} characters that stays the same in a retry."
        )
    return name


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """A form of `function` for callers that cannot await. It awaits awaitable results, such as `objects.acreate(…)`."""

    async def awaited(result: Awaitable[Any]) -> Any:
        return await result

    def plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return awaiting(awaited)(result) if isawaitable(result) else result

    plain.__wrapped__ = function  # type: ignore[attr-defined]  # its signature says whether it asks for the operation
    return plain


def asks_for_operation(function: Callable[..., Any]) -> bool:
    """Whether the function has a parameter `operation` that must be given. One with a default has another meaning."""
    try:
        parameter = signature(function).parameters.get("operation")
    except (TypeError, ValueError):  # of some functions that are written in C
        return False
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return parameter is not None and parameter.kind in named and parameter.default is Parameter.empty


def refuse_coroutine(name: str, function: Any, instead: str) -> None:
    if iscoroutinefunction(function):
        raise IdempotencyConfigurationError(
            f"step {name!r}: {function!r} is a coroutine function. Write `await operation.{instead}({name!r}, …)`."
        )
