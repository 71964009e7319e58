"""What an operation of Django Ninja declares about its protection. The operation is never called."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ninja.operation import Operation, PathView

from ..endpoints.declared import Declaration, Layers
from ..engine.conf import SAFE_METHODS
from ..engine.declare.callables import dotted_name, unwrapped
from .decorators import HANDLER, _Handler
from .view_call import without_request


def declarations(path_view: PathView) -> Iterator[Declaration]:
    """The unsafe methods of one path, each with the operation that answers it."""
    for operation in path_view.operations:
        for method in operation.methods:
            if method not in SAFE_METHODS:
                yield declaration_of(operation, method)


def declaration_of(operation: Operation, method: str) -> Declaration:
    """The declaration of one method of an operation."""
    view = operation.view_func
    answer = partial(without_request, operation, method)
    return Declaration(method=method, view=dotted_name(view), layers=_layers(view), answer=answer)


def _layers(view: object) -> Layers | None:
    for candidate in unwrapped(view):
        handler: _Handler | None = getattr(candidate, HANDLER, None)
        if handler is not None:
            return handler.layers()
    return None
