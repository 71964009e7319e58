"""Every unsafe route of the project, protected or not: read from its URLconf, no view is called.

What cannot be seen counts as not protected: a decorator that hides its view (without `functools.wraps`), an
`idempotent` that is called inside the view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from ..engine.conf import SAFE_METHODS, Idempotency, resolve, settings
from ..engine.declare import frameworks
from ..engine.declare.class_options import class_layers
from ..views import IdempotencyMixin
from .declared import Handler, declared_methods, dispatch_layers, dotted, layers_of, unwrapped
from .routes import routes

ANY = "ANY"
"""The method of a function that does not say which ones it answers, such as by `require_POST`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One unsafe method of one route.

    method: "POST", …; "ANY" for an unprotected function that does not say.
    route: as in `request.resolver_match.route`.
    name: what `reverse` takes, or the empty string.
    view: dotted name of the function, the class, or the class and its action.
    options: resolved, every option has a value; None: not protected.
    note: why not, or what the options do not say.
    """

    method: str
    route: str
    name: str
    view: str
    options: Idempotency | None = None
    note: str = ""

    @property
    def protected(self) -> bool:
        return self.options is not None

    @property
    def mode(self) -> str:
        """ "atomic", "leased" or "leased, hold"; empty if not protected."""
        return "" if self.options is None else mode(self.options)


def mode(options: Idempotency) -> str:
    """How the options let the view run, in a word or two."""
    if options.lease is None:
        return "atomic"
    return "leased, hold" if options.on_abandoned == "hold" else "leased"


def list_endpoints(urlconf: str | None = None) -> list[Endpoint]:
    """The unsafe endpoints of the URLconf (default: the project's), in its order.

    Reads no database. Raises `IdempotencyConfigurationError` for options that cannot work, and what importing the
    URLconf raises.
    """
    found = []
    for route, name, callback in routes(urlconf):
        for handler in _handlers(callback):
            found += [
                Endpoint(method=method, route=route, name=name, view=handler.view, options=options, note=note)
                for method, options, note in _judged(handler)
            ]
    return found


def _handlers(callback: Any) -> Iterator[Handler]:
    for candidate in unwrapped(callback):
        for framework in frameworks.in_use():
            if (found := framework.declared(candidate)) is not None:
                return found
        if isinstance(getattr(candidate, "view_class", None), type):
            return _class_handlers(candidate)
    return _function_handlers(callback)


def _function_handlers(callback: Any) -> Iterator[Handler]:
    """A view function: the methods of its `require_http_methods`, else one handler that does not say."""
    view, layers = dotted(callback), layers_of(callback)
    declared = declared_methods(callback)
    for method in [None] if declared is None else sorted(declared - SAFE_METHODS):
        yield Handler(method=method, view=view, layers=layers)


def _class_handlers(callback: Any) -> Iterator[Handler]:
    """What `as_view()` of plain Django has returned: protected as a whole, by `dispatch`, by the mixin or by method."""
    view_class, initkwargs = callback.view_class, callback.view_initkwargs
    whole, by_request = layers_of(callback), False
    if whole is None:
        whole = dispatch_layers(view_class)
    if whole is None and issubclass(view_class, IdempotencyMixin):
        whole = class_layers(view_class, initkwargs) or None
        by_request = view_class.get_idempotency_options is not IdempotencyMixin.get_idempotency_options
    for name in initkwargs.get("http_method_names", view_class.http_method_names):
        handler = getattr(view_class, name, None)
        if name.upper() not in SAFE_METHODS and handler is not None:
            layers = layers_of(handler) if whole is None else whole
            yield Handler(method=name.upper(), view=dotted(view_class), layers=layers, decides_by_request=by_request)


def _judged(handler: Handler) -> Iterator[tuple[str, Idempotency | None, str]]:
    """Method, options, note. A function that does not declare its methods has one line for each protected one."""
    if handler.layers is None:
        yield handler.method or ANY, None, _("decided for each request") if handler.decides_by_request else ""
        return
    options = resolve(*handler.layers)
    for method in sorted(options.methods) if handler.method is None else [handler.method]:
        if not settings().enabled:
            yield method, None, _("IDEMPOTENCY['ENABLED'] is False")
        elif method not in options.methods:
            yield method, None, _("only %(methods)s protected") % {"methods": ", ".join(sorted(options.methods))}
        else:
            yield method, options, _("decided for each request") if handler.decides_by_request else ""
