"""What the engine asks about the REST framework. See `engine.declare.frameworks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework.response import Response

from ..endpoints.declared import Declaration
from ..engine.declare import registry
from ..engine.declare.placement import is_drf_view
from .declared import declarations
from .view_call import renderers_of, without_request
from .view_call import view_call as view_call


def declared(callback: Any) -> Iterator[Declaration] | None:
    """The unsafe methods of what `as_view()` or a router has returned."""
    return declarations(callback) if is_drf_view(getattr(callback, "cls", None)) else None


def response(returned: Any, declaration: registry.Declaration) -> HttpResponseBase | None:
    """Render what `reconcile` has returned, as JSON: no client was there to negotiate with."""
    return without_request(renderers_of(declaration.target), returned) if isinstance(returned, Response) else None
