"""How is a callable protected?

The list of endpoints, the checks, the OpenAPI schema and the recovery read the `Declaration` of each callable.
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
from .wrappers import dotted_name, method_name, with_call

MARK = "_idempotency_declaration"
"""The attribute of a protected callable that holds its `Declaration`."""
VERBS = frozenset({"post", "put", "patch", "delete"})
"""A decorated method with one of these names protects the HTTP method of the same name."""
_registered: dict[str, dict[Hashable, Declaration]] = {}


@dataclass(frozen=True, slots=True)
class Declaration:
    """How a callable is protected.

    Attributes:
        layers: the layers of options, the nearest first.
        target: the protected callable, the view class or Django Ninja's operation, or None if not known yet.
        by_request: whether the view overrides `get_idempotency_options()`, so that its options can differ by request.
        once: whether the callable is decorated with `once`, and is therefore not a view.
    """

    layers: tuple[Idempotency, ...]
    target: Any = None
    by_request: bool = False
    once: bool = False

    @property
    def options(self) -> Options:
        """All layers merged. Raises `IdempotencyConfigurationError` if two options contradict each other."""
        return resolve(*self.layers)

    def options_for(self, method: str) -> Options | None:
        """Return the options for this HTTP method, or None if it is not protected. Raises as `options` does."""
        return self.options if get_settings().enabled and method in self.options.methods else None

    def reconciled(self, returned: Any) -> Finished[Any]:
        """During a recovery, which has no request, convert the value that `reconcile` returned to a final result.

        Raises:
            IdempotencyConfigurationError: the value is not a valid result of `reconcile`.
        """
        if self.once:
            return final_result(returned, self.options.reconcile)
        return final_response(adapter_of(self.target, returned).recovered(returned, self.target), self.options)


def declare(callable_: Any, declaration: Declaration) -> None:
    """Store the declaration on the protected callable, and register it."""
    declaration = replace(declaration, target=callable_)
    setattr(callable_, MARK, declaration)
    register(declaration)


def register(declaration: Declaration) -> None:
    """Store a declaration if it sets `operation` and `reconcile`, so that the recovery can find it by its operation."""
    # Options from the `IDEMPOTENCY` setting are left out, because the setting can't be read while modules are imported.
    given = given_by(declaration.layers)
    operation, reconcile = given.get("operation"), given.get("reconcile")
    if operation is not None and reconcile is not None:
        # The same callable may be registered again, and its new declaration then replaces the old one:
        # `method_decorator` applies its decorators on each request, and a function decorated with `once` may be defined
        # inside another function.
        key = dotted_name(declaration.target) if declaration.once else id(reconcile)
        _registered.setdefault(operation, {})[key] = declaration


def registered(operation: str) -> list[Declaration]:
    """Return all declarations that set `reconcile` for this operation. Importing the URLconf registers them."""
    return list(_registered.get(operation, {}).values())


def declaration_of(callable_: Any) -> Declaration | None:
    """Return the declaration of a callable or of a function that it wraps, or None if there is none."""
    for level in with_call(callable_):
        declaration: Declaration | None = getattr(level, MARK, None)
        if declaration is not None:
            # `method_decorator` applies its decorators only when the view is called, so the declaration made at import
            # time does not include the verb.
            return replace(declaration, layers=with_verb(declaration.layers, method_name(level)))
    return None


def with_verb(layers: tuple[Idempotency, ...], name: str) -> tuple[Idempotency, ...]:
    """Return the layers, with one more if the handler is named after an HTTP method, such as `put`."""
    if name not in VERBS:
        return layers
    layer = for_methods(name.upper())
    return layers if layer in layers else (*layers, layer)


def given(decorator: str, view: Any, options: Mapping[str, Any]) -> tuple[Idempotency, Any]:
    """Return the options and the view that were passed to a decorator; the view is None in `@idempotent(ttl=60)`.

    Raises:
        IdempotencyConfigurationError: for options that cannot work.
    """
    if options and view is not None:
        raise IdempotencyConfigurationError(
            f"pass options to {decorator} by keyword only or as one Idempotency, not both, and before the view."
        )
    if view is None or isinstance(view, Idempotency):
        return view or as_options(options), None
    return Idempotency(), view
