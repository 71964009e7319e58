"""Which decorators decide who may call a view: Django's, those of known packages, and those whose name says so.

A decorator is seen if it uses `functools.wraps`. What a view checks in its own code cannot be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from .callables import unwrapped

PACKAGES = ("django.contrib.admin", "django.contrib.auth", "braces", "guardian", "oauth2_provider", "rules")
"""All decorators in these packages are access checks."""
NAMED = re.compile(r"required|permission|login|auth(?!or(?!i))", re.IGNORECASE)
"""The names of most access checks of other packages and of projects: `otp_required`, `check_permission`."""


def access_check(function: Any, *, below: str | None = None) -> str | None:
    """The name of an access check among the decorators of this function, or None.

    Args:
        below: an attribute that a decorator has set. Only what stands below that decorator counts.
    """
    levels = list(unwrapped(function))
    # functools.wraps copies the attribute to the decorators above.
    marked = [i for i, level in enumerate(levels) if below is not None and below in getattr(level, "__dict__", {})]
    for level in levels[marked[-1] + 1 :] if marked else levels:
        for decorator in _decorators(level):
            if (name := _name_of_check(decorator)) is not None:
                return name
    return None


def _decorators(level: Any) -> Iterator[Any]:
    """The decorator at this level, told by its wrapper; or those that `method_decorator` applies on each call."""
    if isinstance(level, partial) or not hasattr(level, "__wrapped__"):
        return
    yield level
    if getattr(level, "__globals__", {}).get("__name__") == "django.utils.decorators":
        names = level.__code__.co_freevars
        enclosed = {name: cell.cell_contents for name, cell in zip(names, level.__closure__ or (), strict=True)}
        yield from enclosed.get("decorators", ())


def _name_of_check(decorator: Any) -> str | None:
    while isinstance(decorator, partial):
        decorator = decorator.func
    code = getattr(decorator, "__code__", None)
    if code is None:
        module, names = type(decorator).__module__, [type(decorator).__qualname__]
    else:
        # functools.wraps changes the names of a wrapper, but not these.
        module, names = decorator.__globals__["__name__"], code.co_qualname.split(".<locals>.")
    if any(f"{module}.".startswith(f"{package}.") for package in PACKAGES):
        return f"{module}.{names[0]}"
    # A decorator may be defined inside a test.
    named = (name for name in names if NAMED.search(name) and not name.rpartition(".")[2].startswith("test"))
    return next((f"{module}.{name}" for name in named), None)
