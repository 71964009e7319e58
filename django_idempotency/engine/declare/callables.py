"""What a callable is: the function below its decorators, and its dotted name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any


def unwrapped(function: Any) -> Iterator[Any]:
    """The callable, then what is below its decorators, as far as `functools.wraps` and `partial` show it."""
    seen = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = function.func if isinstance(function, partial) else getattr(function, "__wrapped__", None)


def innermost(function: Any) -> Any:
    """The function below all its decorators, see `unwrapped`."""
    *_, found = unwrapped(function)
    return found


def dotted_name(function: Any) -> str:
    """The dotted name of the innermost function. An object that is not a function is named by its class."""
    found = innermost(function)
    named = found if hasattr(found, "__qualname__") else type(found)
    return f"{named.__module__}.{named.__qualname__}"


def method_name(view: Any) -> str:
    """The name of a function that was defined in a class body, else the empty string."""
    owner, _, name = str(getattr(view, "__qualname__", "")).rpartition(".")
    return name if owner and not owner.endswith("<locals>") else ""
