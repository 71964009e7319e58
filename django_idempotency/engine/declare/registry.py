"""The declaration of a protected callable: its options and its place. The listing, the checks, OpenAPI and the recovery
read this declaration."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, as_options, for_methods, get_settings, resolve
from ..execution.once import final_result
from ..protocol.outcomes import Finished
from ..request.view_call import found
from .wrappers import dotted_name, method_name, unwrapped

MARK = "_idempotency_declaration"
"""The attribute of a protected callable that holds its `Declaration`."""
VERBS = frozenset({"post", "put", "patch", "delete"})
"""If a decorated method has one of these names, the decorator protects the HTTP method of this name."""
FRAMEWORKS = {
    "ninja": "django_idempotency.ninja.operations",
    "rest_framework": "django_idempotency.rest_framework.adapter",
}
"""For each framework, the name of our module. The engine imports the module late, by this name, because the module
imports the engine.
"""
_registered: dict[str, dict[Hashable, Declaration]] = {}


@dataclass(frozen=True, slots=True)
class Declaration:
    """How a callable is protected.

    Attributes:
        layers: the layers of options, the nearest layer first.
        target: the protected callable, the view class or the operation of Django Ninja, or None if it is not known yet.
        by_request: True if the view overrides `get_idempotency_options()`, so its options can differ from request to
            request.
        once: True if the callable is decorated with `once`, so it is not a view.
    """

    layers: tuple[Idempotency, ...]
    target: Any = None
    by_request: bool = False
    once: bool = False

    @property
    def options(self) -> Idempotency:
        """The resolved options, in which every option has a value.

        Raises `IdempotencyConfigurationError` for options that contradict each other.
        """
        return resolve(*self.layers)

    def options_for(self, method: str) -> Idempotency | None:
        """The options for this HTTP method, or None if the method is not protected. Raises the error that `options`
        raises.
        """
        return self.options if get_settings().enabled and method in self.options.methods else None

    def finished(self, returned: Any) -> Finished[Any]:
        """Convert the value that `reconcile` returned when no request was there into the end of the operation.

        Raises:
            IdempotencyConfigurationError: this value is not a valid result of `reconcile`.
        """
        if self.once:
            return final_result(returned, self.options.reconcile)
        responses = (framework.response(returned, self) for framework in frameworks())
        response = next((response for response in responses if response is not None), returned)
        return found(response, self.options)


def frameworks() -> list[Any]:
    """Our modules for the frameworks that the project itself has imported. Each module has three functions:

    * `view_call(request, view, args, kwargs, options)` returns the `ViewCall` of a protected view, or None if `request`
      is not a request of this framework.
    * `declared(callback)` returns each method of a URL's callback, with its view and `Declaration`, or None if the
      callback is a class or does not belong to this framework.
    * `response(returned, declaration)` converts the value that `reconcile` returned when no request was there into a
      response. It returns None if the value does not belong to this framework.
    """
    return [import_module(ours) for name, ours in FRAMEWORKS.items() if name in sys.modules]


def declare(callable_: Any, declaration: Declaration) -> None:
    """Mark the protected callable, and register its declaration."""
    declaration = replace(declaration, target=callable_)
    setattr(callable_, MARK, declaration)
    register(declaration)


def register(declaration: Declaration) -> None:
    """Let recovery find the declaration by its `operation`, if the declaration has an `operation` and a `reconcile`."""
    given: dict[str, Any] = {}  # the project's settings are left out, because they cannot be read at import
    for layer in reversed(declaration.layers):
        given |= layer.given()
    operation, reconcile = given.get("operation"), given.get("reconcile")
    if operation is not None and reconcile is not None:
        # Sometimes a view is registered again, because `method_decorator` decorates on each request. A function of
        # `once` is registered again if another function defines it in each call. Then the new declaration replaces the
        # old declaration.
        key = dotted_name(declaration.target) if declaration.once else id(reconcile)
        _registered.setdefault(operation, {})[key] = declaration


def registered(operation: str) -> list[Declaration]:
    """The declarations with this `operation` and a `reconcile`, in all imported modules. Import the URLconf first."""
    return list(_registered.get(operation, {}).values())


def declaration_of(callable_: Any) -> Declaration | None:
    """Return the declaration of this callable or of the callable below its decorators, or None without protection."""
    *levels, innermost = unwrapped(callable_)
    # An object with a protected __call__ is a view too.
    for level in (*levels, innermost, getattr(type(innermost), "__call__", None)):  # noqa: B004 (not whether it is)
        declaration: Declaration | None = getattr(level, MARK, None)
        if declaration is not None:
            # method_decorator applies the decorator on each call, so at import the declaration has no method yet.
            return replace(declaration, layers=with_verb(declaration.layers, method_name(level)))
    return None


def with_verb(layers: tuple[Idempotency, ...], name: str) -> tuple[Idempotency, ...]:
    """Add a layer if the name of a handler is an HTTP method: the decorator on a handler called `put` protects PUT."""
    if name not in VERBS:
        return layers
    layer = for_methods(name.upper())
    return layers if layer in layers else (*layers, layer)


def given(decorator: str, view: Any, options: Mapping[str, Any]) -> tuple[Idempotency, Any]:
    """Return the options and the view of a decorator's call. The view is None if Python passes it in a second call.

    Raises:
        IdempotencyConfigurationError: for options that cannot work.
    """
    if options and view is not None:
        raise IdempotencyConfigurationError(
            f"pass options to {decorator} by keyword only, before the view, or as one Idempotency, not both."
        )
    if view is None or isinstance(view, Idempotency):
        return view or as_options(options), None
    return Idempotency(), view
