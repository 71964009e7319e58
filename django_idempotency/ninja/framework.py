"""What the engine asks about Django Ninja. See `engine.declare.frameworks`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from django.http.response import HttpResponseBase
from ninja.operation import Operation, PathView

from ..endpoints.declared import Declaration
from ..engine.conf import SAFE_METHODS
from ..engine.declare import registry
from .declared import declarations
from .view_call import without_request


def declared(callback: Any) -> Iterator[Declaration] | None:
    """The unsafe methods of the path whose `PathView` the URL's callback holds in its closure."""
    enclosed = inspect.getclosurevars(callback).nonlocals.values() if inspect.isfunction(callback) else ()
    path_view = next((value for value in enclosed if isinstance(value, PathView)), None)
    return None if path_view is None else declarations(path_view)


def view_call(*args: Any) -> None:
    """Django Ninja hands out Django's own requests, and has a decorator of its own."""


def response(returned: Any, declaration: registry.Declaration) -> HttpResponseBase | None:
    """What an operation may return, its `reconcile` may return."""
    if declaration.kind != "ninja" or not isinstance(declaration.target, Operation):
        return None
    method = next(method for method in declaration.target.methods if method not in SAFE_METHODS)
    return without_request(declaration.target, method, returned)
