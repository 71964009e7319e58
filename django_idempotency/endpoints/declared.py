"""What a view declares about its protection. The view is inspected, never called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http.response import HttpResponseBase
from django.views.decorators import http as method_decorators

from ..engine.conf import SAFE_METHODS, Idempotency, get_settings, resolve
from ..engine.declare.callables import unwrapped
from ..engine.declare.registry import declaration_of
from ..engine.request.view_call import rendered

Layers = tuple[Idempotency, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a view declares for one HTTP method.

    Attributes:
        method: None if the view does not declare its methods.
        view: its dotted name.
        layers: the option layers, nearest first; None: not protected.
        decides_by_request: the view may decide otherwise for a request.
        answer: makes a rendered response of what the view's `reconcile` has returned without a request.
    """

    method: str | None
    view: str
    layers: Layers | None
    decides_by_request: bool = False
    answer: Callable[[Any], HttpResponseBase] = rendered

    def options_for(self, method: str) -> Idempotency | None:
        """The resolved options; None: this method is not protected.

        Raises:
            IdempotencyConfigurationError: for options that contradict each other.
        """
        if self.layers is None or not get_settings().enabled:
            return None
        options = resolve(*self.layers)
        return options if method in options.methods else None


def layers_of(view: Any) -> Layers | None:
    """The option layers of a callable that `idempotent` protects, or None."""
    declaration = None if view is None else declaration_of(view)
    return None if declaration is None else declaration.layers


def dispatch_layers(view_class: Any) -> Layers | None:
    """The option layers of the nearest protected `dispatch`, of the class or of a base class.

    A `dispatch` above it, such as LoginRequiredMixin's, calls the protected one.
    """
    dispatches = (vars(cls).get("dispatch") for cls in view_class.__mro__)
    return next((layers for dispatch in dispatches if (layers := layers_of(dispatch)) is not None), None)


def unsafe_verbs(view_class: Any, initkwargs: Mapping[str, Any], actions: Mapping[str, str] | None = None) -> list[str]:
    """The unsafe verbs that a class-based view answers. `actions` are a viewset's: verb to name of its method."""
    verbs = initkwargs.get("http_method_names", view_class.http_method_names)
    names = {verb: verb if actions is None else actions.get(verb, "") for verb in verbs}
    return [verb for verb, name in names.items() if verb.upper() not in SAFE_METHODS and hasattr(view_class, name)]


def declared_methods(callback: Any) -> set[str] | None:
    """The methods of `require_http_methods`, `require_POST` and the like; None: not declared.

    Those decorators keep the methods in a closure.
    """
    found = None
    for candidate in unwrapped(callback):
        if getattr(candidate, "__globals__", None) is vars(method_decorators):
            methods = inspect.getclosurevars(candidate).nonlocals.get("request_method_list")
            if methods is not None:
                found = set(methods) if found is None else found & set(methods)
    return found
