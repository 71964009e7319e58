"""Each protected callable has a `Declaration` with its options. Four parts of the package read the declarations: the
list of endpoints, the system checks, the OpenAPI schemas and the recovery.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, Options, as_options, for_methods, get_settings, given_by, resolve
from ..execution.once import final_result
from ..protocol.outcomes import Finished
from ..request.adapters import adapter_of
from ..request.view_call import final_response
from .wrappers import dotted_name, method_name, unwrapped

MARK = "_idempotency_declaration"
"""The attribute of a protected callable that holds its `Declaration`."""
VERBS = frozenset({"post", "put", "patch", "delete"})
"""If a decorated method has one of these names, the decorator protects the HTTP method of this name."""
_registered: dict[str, dict[Hashable, Declaration]] = {}


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declaration describes how a callable is protected.

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
    def options(self) -> Options:
        """Merge all layers of options, and return the result. In the result, every option has a value.

        Raises `IdempotencyConfigurationError` if two options contradict each other.
        """
        return resolve(*self.layers)

    def options_for(self, method: str) -> Options | None:
        """Return the options for this HTTP method, or None if the method is not protected.

        Raises `IdempotencyConfigurationError` if two options contradict each other.
        """
        return self.options if get_settings().enabled and method in self.options.methods else None

    def reconciled(self, returned: Any) -> Finished[Any]:
        """Convert the return value of `reconcile` into the final result of the operation.

        The recovery has no request when it calls `reconcile`. So the recovery uses this method.

        Raises:
            IdempotencyConfigurationError: the value is not a valid result of `reconcile`.
        """
        if self.once:
            return final_result(returned, self.options.reconcile)
        return final_response(adapter_of(self.target, returned).recovered(returned, self.target), self.options)


def declare(callable_: Any, declaration: Declaration) -> None:
    """Store the declaration as an attribute of the protected callable, and register the declaration."""
    declaration = replace(declaration, target=callable_)
    setattr(callable_, MARK, declaration)
    register(declaration)


def register(declaration: Declaration) -> None:
    """Store the declaration under the name of the operation, so that the recovery can find the declaration.

    Only a declaration with both options `operation` and `reconcile` is stored.
    """
    # This function runs while Python imports modules. At import, the package cannot read the `IDEMPOTENCY` setting, so
    # the dict `given` does not contain the options of this setting.
    given = given_by(declaration.layers)
    operation, reconcile = given.get("operation"), given.get("reconcile")
    if operation is not None and reconcile is not None:
        # The same view can be registered several times, because `method_decorator` decorates the view on each request.
        # A function inside another function can have the decorator `once`. Then each call of the outer function
        # registers the inner function again. If a callable is registered again, the new declaration replaces the old
        # declaration.
        key = dotted_name(declaration.target) if declaration.once else id(reconcile)
        _registered.setdefault(operation, {})[key] = declaration


def registered(operation: str) -> list[Declaration]:
    """Return all registered declarations of an operation. Each of these declarations has the option `reconcile`.

    Import the URLconf before you call this function, because the import registers the declarations of the views.
    """
    return list(_registered.get(operation, {}).values())


def declaration_of(callable_: Any) -> Declaration | None:
    """Return the declaration of this callable, or None if the callable is not protected.

    If decorators wrap a function, the declaration can be an attribute of the function or of one of its wrappers.
    """
    *levels, innermost = unwrapped(callable_)
    # A view can also be an object. Then the decorator is on the method `__call__` of the object's class. Rule B004 of
    # ruff recommends `callable()`, but the next line needs the method `__call__` itself.
    for level in (*levels, innermost, getattr(type(innermost), "__call__", None)):  # noqa: B004
        declaration: Declaration | None = getattr(level, MARK, None)
        if declaration is not None:
            # `method_decorator` applies the decorator only when the view is called. So at import, the declaration does
            # not get the HTTP method of the handler. The next line adds this HTTP method.
            return replace(declaration, layers=with_verb(declaration.layers, method_name(level)))
    return None


def with_verb(layers: tuple[Idempotency, ...], name: str) -> tuple[Idempotency, ...]:
    """Return the layers of options. If the name of the handler is in `VERBS`, there is one more layer. The additional
    layer protects only requests with the HTTP method of the handler.

    For example, a decorator on a handler with the name `put` protects PUT requests.
    """
    if name not in VERBS:
        return layers
    layer = for_methods(name.upper())
    return layers if layer in layers else (*layers, layer)


def given(decorator: str, view: Any, options: Mapping[str, Any]) -> tuple[Idempotency, Any]:
    """Return the options and the view that were passed to a decorator.

    For `@idempotent(ttl=60)`, the view is None. The call `idempotent(ttl=60)` returns a decorator, and then Python
    passes the view to this decorator.

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
