"""Every unsafe route of the project, protected or not, read from its URLconf. No view is called.

A protection that cannot be seen counts as none: below a decorator without `functools.wraps`, or an `idempotent` that
is applied inside the view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..engine.conf import SAFE_METHODS, Idempotency, get_settings, resolve
from ..engine.declare import frameworks
from ..engine.declare.callables import dotted_name, unwrapped
from ..engine.declare.class_options import class_layers
from ..views import IdempotencyMixin
from .declared import Declaration, declared_methods, dispatch_layers, layers_of, unsafe_verbs
from .routes import Route, format_suffixes, routes

SHIPPED = ("django.contrib.", "django.views.generic.base.RedirectView", "django_idempotency.")
"""Views in the admin that are not the project's own."""
ANY = "ANY"
"""The method of a function that does not declare its methods, as `require_POST` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One unsafe method of one route.

    Attributes:
        method: "POST", for example; "ANY" for an unprotected function that does not declare its methods.
        route: as in `request.resolver_match.route`.
        name: the argument of `reverse`, or the empty string.
        view: dotted name of the function, the class, or the class and its action.
        options: resolved, every option has a value; None: not protected.
        note: why the endpoint is not protected, or a fact that the options do not show.
        own: False for a view of Django or of this package in the admin, and for a format suffix (`orders.json`) of
            another route.
    """

    method: str
    route: str
    name: str
    view: str
    options: Idempotency | None = None
    note: str = ""
    own: bool = True

    @property
    def protected(self) -> bool:
        return self.options is not None

    @property
    def mode(self) -> str:
        """ "atomic", "leased" or "leased, hold"; empty if not protected."""
        if self.options is None:
            return ""
        if self.options.lease is None:
            return "atomic"
        return "leased, hold" if self.options.on_abandoned == "hold" else "leased"


def list_endpoints(urlconf: str | None = None) -> list[Endpoint]:
    """The unsafe endpoints of a URLconf, in its order. Reads no database.

    Args:
        urlconf: dotted path; default: the project's.

    Returns:
        One `Endpoint` for each unsafe method of each route.

    Raises:
        IdempotencyConfigurationError: for options that cannot work. What importing the URLconf raises propagates.
    """
    found = list(routes(urlconf))
    suffixes = format_suffixes(found)
    return [
        Endpoint(
            method=method,
            route=route.route,
            name=route.name,
            view=declaration.view,
            options=(options := declaration.options_for(method)),
            note=_note(declaration, options),
            own=route.route not in suffixes and not _of_the_admin(route, declaration.view),
        )
        for route in found
        for declaration in declarations_of(route.callback)
        for method in methods_of(declaration)
    ]


def _of_the_admin(route: Route, view: str) -> bool:
    """Views of the project and of other packages are not: they may move money."""
    return route.in_admin and view.startswith(SHIPPED)


def declarations_of(callback: Any) -> Iterator[Declaration]:
    """What the callback of a route declares, for each of its methods."""
    for candidate in unwrapped(callback):
        for framework in frameworks.in_use():
            if (found := framework.declared(candidate)) is not None:
                return (
                    one if isinstance(one, Declaration)
                    else Declaration(method=one[0], view=one[1], layers=one[2] and one[2].layers) for one in found
                )
        if isinstance(getattr(candidate, "view_class", None), type):
            return _of_class(candidate)
    return _of_function(callback)


def _of_function(callback: Any) -> Iterator[Declaration]:
    """A view function: one declaration for each of its `require_http_methods`, else one without a method."""
    view, layers = dotted_name(callback), layers_of(callback)
    declared = declared_methods(callback)
    for method in [None] if declared is None else sorted(declared - SAFE_METHODS):
        yield Declaration(method=method, view=view, layers=layers)


def _of_class(callback: Any) -> Iterator[Declaration]:
    """The result of plain Django's `as_view()`: protected as a whole, by `dispatch`, by the mixin or by method."""
    view_class, initkwargs = callback.view_class, callback.view_initkwargs
    whole, by_request = layers_of(callback), False
    if whole is None:
        whole = dispatch_layers(view_class)
    if whole is None and issubclass(view_class, IdempotencyMixin):
        whole = class_layers(view_class, initkwargs) or None
        by_request = view_class.get_idempotency_options is not IdempotencyMixin.get_idempotency_options
    view = dotted_name(view_class)
    for verb in unsafe_verbs(view_class, initkwargs):
        layers = layers_of(getattr(view_class, verb)) if whole is None else whole
        yield Declaration(method=verb.upper(), view=view, layers=layers, decides_by_request=by_request)


def methods_of(declaration: Declaration) -> list[str]:
    """One line of the list for each. A function that does not declare its methods has its protected ones."""
    if declaration.method is not None:
        return [declaration.method]
    return [ANY] if declaration.layers is None else sorted(resolve(*declaration.layers).methods)


def _note(declaration: Declaration, options: Idempotency | None) -> str:
    if options is None and declaration.layers is not None:
        if not get_settings().enabled:
            return "IDEMPOTENCY['ENABLED'] is False"
        return f"only {', '.join(sorted(resolve(*declaration.layers).methods))} protected"
    return "decided for each request" if declaration.decides_by_request else ""
