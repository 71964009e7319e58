"""What the engine asks about the REST framework. See `engine.declare.frameworks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..endpoints.declared import Declaration
from ..engine.declare.placement import is_drf_view
from .declared import declarations
from .view_call import view_call as view_call


def declared(callback: Any) -> Iterator[Declaration] | None:
    """The unsafe methods of what `as_view()` or a router has returned."""
    return declarations(callback) if is_drf_view(getattr(callback, "cls", None)) else None
