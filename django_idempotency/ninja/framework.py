"""What the engine asks about Django Ninja. See `engine.declare.frameworks`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from ninja.operation import PathView

from ..endpoints.declared import Declaration
from .declared import declarations


def declared(callback: Any) -> Iterator[Declaration] | None:
    """The unsafe methods of the path whose `PathView` the URL's callback holds in its closure."""
    enclosed = inspect.getclosurevars(callback).nonlocals.values() if inspect.isfunction(callback) else ()
    path_view = next((value for value in enclosed if isinstance(value, PathView)), None)
    return None if path_view is None else declarations(path_view)


def view_call(*args: Any) -> None:
    """Django Ninja hands out Django's own requests, and has a decorator of its own."""
