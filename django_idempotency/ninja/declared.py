"""What protects an operation of Django Ninja: read, never called."""

from __future__ import annotations

from collections.abc import Iterator

from ninja.operation import PathView

from ..endpoints.declared import Handler, Layers, dotted
from ..engine.conf import SAFE_METHODS
from .decorators import HANDLER, _Handler, _only, _wrapped


def handlers(path_view: PathView) -> Iterator[Handler]:
    """The unsafe methods of one path, each with the operation that answers it."""
    for operation in path_view.operations:
        for method in operation.methods:
            if method not in SAFE_METHODS:
                view = operation.view_func
                yield Handler(method=method, view=dotted(view), layers=_layers(view))


def _layers(view: object) -> Layers | None:
    for candidate in _wrapped(view):
        handler: _Handler | None = getattr(candidate, HANDLER, None)
        if handler is not None:
            verbs = (_only(frozenset(handler.routed)),) if handler.routed else ()
            return *handler.own, *verbs, *handler.inherited
    return None
