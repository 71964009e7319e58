"""What answers a method of a route, and what `idempotent` has left on it: read, never called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.views.decorators import http as method_decorators

from ..engine.conf import Idempotency
from ..engine.declare.decorators import MARK, VERBS, only_method
from ..engine.declare.placement import method_name

Layers = tuple[Idempotency, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One method of one view.

    method: None if the view does not say which methods it answers.
    view: its dotted name.
    layers: the option layers, nearest first; None: nothing protects it.
    decides_by_request: the layers are only the rule, the view may decide otherwise for a request.
    """

    method: str | None
    view: str
    layers: Layers | None
    decides_by_request: bool = False


def unwrapped(view: Any) -> Iterator[Any]:
    """The callable and what is below its decorators, as far as `functools.wraps` and `partial` show it."""
    seen = set()
    while view is not None and id(view) not in seen:
        seen.add(id(view))
        yield view
        view = view.func if isinstance(view, partial) else getattr(view, "__wrapped__", None)


def layers_of(view: Any) -> Layers | None:
    """The option layers of a callable that `idempotent` protects, or None."""
    *_, innermost = (None, *unwrapped(view))
    # An object with a protected __call__ is a view too.
    for candidate in (*unwrapped(view), getattr(type(innermost), "__call__", None)):  # noqa: B004 (not whether it is)
        layers: Layers | None = getattr(candidate, MARK, None)
        if layers is not None:
            # method_decorator decorates when the method is called; what it shows until then is a mark without verb.
            verb = method_name(candidate)
            return (*layers, only_method(verb.upper())) if verb in VERBS else layers
    return None


def dotted(view: Any) -> str:
    """The name to find the view by: of the innermost function, or of the class of an object."""
    *_, innermost = unwrapped(view)
    found = innermost if hasattr(innermost, "__qualname__") else type(innermost)
    return f"{found.__module__}.{found.__qualname__}"


def dispatch_layers(view_class: Any) -> Layers | None:
    """Of the protected `dispatch` of a base class too: one above it, such as LoginRequiredMixin's, calls it."""
    dispatches = (vars(cls).get("dispatch") for cls in view_class.__mro__)
    return next((layers for dispatch in dispatches if (layers := layers_of(dispatch)) is not None), None)


def declared_methods(callback: Any) -> set[str] | None:
    """From `require_http_methods`, `require_POST` and the like, which keep them in a closure; None: not declared."""
    found = None
    for candidate in unwrapped(callback):
        if getattr(candidate, "__globals__", None) is vars(method_decorators):
            methods = inspect.getclosurevars(candidate).nonlocals.get("request_method_list")
            if methods is not None:
                found = set(methods) if found is None else found & set(methods)
    return found
