"""What the engine asks about the REST framework. See `engine.declare.frameworks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..endpoints.declared import Handler
from ..engine.declare.placement import is_drf_view
from .declared import handlers
from .view_call import view_call

__all__ = ["declared", "view_call"]


def declared(callback: Any) -> Iterator[Handler] | None:
    """The unsafe methods of what `as_view()` or a router has returned."""
    return handlers(callback) if is_drf_view(getattr(callback, "cls", None)) else None
