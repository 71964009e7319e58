"""Every unsafe route of the project, protected or not, read from its URLconf. No view is called.

A protection that cannot be seen counts as none: below a decorator without `functools.wraps`, or an `idempotent` that
is applied inside the view.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import getclosurevars
from typing import Any, NamedTuple

from django.urls import URLResolver, get_resolver
from django.views.decorators import http as method_decorators

from ..engine.conf import SAFE_METHODS, Idempotency, get_settings
from ..engine.declare.class_options import class_declaration, decides_by_request, handlers
from ..engine.declare.placement import misplaced_decorator, misplaced_dispatch
from ..engine.declare.registry import Declaration, declaration_of, frameworks
from ..engine.declare.wrappers import dotted_name, unwrapped

SHIPPED = (
    *("django.contrib.admin.", "django.contrib.auth.admin.", "django.contrib.contenttypes."),
    *("django.views.generic.base.RedirectView", "django_idempotency."),
)
"""Views that are not the project's own: Django's admin, and redirects, which the admin has, too."""
SUFFIX = re.compile(r"\\\.\(\?P<\w+>|<drf_format_suffix")
"""What the REST framework's `format_suffix_patterns` add to a route: `orders.json` beside `orders/`."""
MODES = {None: "atomic", "retry": "leased", "hold": "leased, hold"}
"""By the option `on_abandoned`, if there is a lease."""
ANY = "ANY"
"""The method of a function that does not declare its methods, as `require_POST` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One unsafe method of one route.

    Attributes:
        method: such as "POST"; "ANY" for an unprotected function that does not declare its methods.
        route: as in `request.resolver_match.route`.
        view: dotted name of the function, or of the class and its action.
        options: every option with its value; None: not protected.
        note: why the endpoint is not protected, or a fact that the options do not show.
        own: False for views of Django and of this package, and for format suffixes (`orders.json`) of another route.
    """

    method: str
    route: str
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
        return "" if self.options is None else MODES[self.options.policy]


def list_endpoints(urlconf: str | None = None) -> list[Endpoint]:
    """The unsafe endpoints of a URLconf, in its order. Reads no database.

    Args:
        urlconf: dotted path; default: the project's.

    Returns:
        One `Endpoint` for each unsafe method of each route.

    Raises:
        IdempotencyConfigurationError: for options that cannot work. What importing the URLconf raises propagates.
    """
    found = list(routes(get_resolver(urlconf)))
    plain = {id(callback) for route, callback in found if not SUFFIX.search(route)}
    return [
        Endpoint(
            method=method,
            route=route,
            view=answers.view,
            options=(options := answers.options_for(method)),
            note=_note(answers, options),
            own=not (SUFFIX.search(route) and id(callback) in plain) and not answers.view.startswith(SHIPPED),
        )
        for route, callback in found
        for answers in declarations_of(callback)
        for method in answers.methods()
    ]


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Route and callback of each URL, in the order of the URLconf, as a resolver match has them."""
    for pattern in resolver.url_patterns:
        # Joined as Django does for resolver_match.route.
        route = str(pattern.pattern)
        route = prefix + (route.removeprefix("^") if prefix else route)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, route)
        else:
            yield route, pattern.callback


class Answers(NamedTuple):
    """What answers one HTTP method of a route.

    method: None if the view does not declare its methods.
    view: its dotted name.
    declaration: what protects it; None: nothing does.
    by_request: the view may decide otherwise for a request.
    """

    method: str | None
    view: str
    declaration: Declaration | None
    by_request: bool = False

    def methods(self) -> list[str]:
        """One line of the list for each. A function that does not declare its methods has its protected ones."""
        if self.method is not None:
            return [self.method]
        return [ANY] if self.declaration is None else sorted(self.declaration.options.methods)

    def options_for(self, method: str) -> Idempotency | None:
        """Resolved; None: not protected. Raises `IdempotencyConfigurationError` for options that cannot work."""
        return None if self.declaration is None else self.declaration.options_for(method)


def declarations_of(callback: Any) -> Iterator[Answers]:
    """What answers the unsafe methods of a URL's callback, and what protects that."""
    for candidate in unwrapped(callback):
        for framework in frameworks():
            if (found := framework.declared(candidate)) is not None:
                return (Answers(*each) for each in found)
        if (cls := _view_class(candidate)) is not None:
            return (
                of_handler(cls, _attributes(candidate), method, name, _whole(candidate, cls))
                for method, name, _ in handlers(cls, _attributes(candidate), getattr(candidate, "actions", None))
            )
    return _of_function(callback)


def of_handler(
    cls: Any, attributes: Mapping[str, Any], method: str, name: str, whole: Declaration | None = None
) -> Answers:
    """What answers one method of a view class.

    Args:
        attributes: those of the view, or those that `as_view()` will give it.
        name: of the handler: a verb, or the action of a viewset.
        whole: what protects the view as a whole.
    """
    handler = getattr(cls, name)
    view = dotted_name(cls) if name == method.lower() else f"{dotted_name(cls)}.{name}"
    if getattr(handler, "__module__", None) == "rest_framework.decorators":
        # Made by @api_view: the class has the name of the function, and its methods keep the function in a closure.
        view, handler = f"{cls.__module__}.{cls.__name__}", getclosurevars(handler).nonlocals["func"]
    found = whole or class_declaration(cls, attributes, name) or declaration_of(handler)
    return Answers(method, view, found, by_request=whole is None and decides_by_request(cls))


def _whole(callback: Any, cls: Any) -> Declaration | None:
    """What protects a class-based view of plain Django as a whole: a decorated callback, or the nearest `dispatch`.

    A `dispatch` above it, such as LoginRequiredMixin's, calls the protected one.
    """
    dispatches = (vars(base)["dispatch"] for base in cls.__mro__ if "dispatch" in vars(base))
    return next((found for level in (callback, *dispatches) if (found := declaration_of(level)) is not None), None)


def _of_function(callback: Any) -> Iterator[Answers]:
    """A view function: one for each method of its `require_http_methods`, else one without a method."""
    view, declaration = dotted_name(callback), declaration_of(callback)
    # Django's decorators keep the methods in a closure.
    levels = (level for level in unwrapped(callback) if getattr(level, "__globals__", None) is vars(method_decorators))
    enclosed = (getclosurevars(level).nonlocals for level in levels)
    declared = [set(found["request_method_list"]) for found in enclosed if "request_method_list" in found]
    for method in sorted(set.intersection(*declared) - SAFE_METHODS) if declared else [None]:
        yield Answers(method, view, declaration)


def misplaced(callback: Any) -> Iterator[str]:
    """What is wrong with the class behind the result of `as_view()` or of a router: E006. Nothing for a function.

    A mixin has refused what it must not protect when its URL was made.
    """
    if (cls := _view_class(callback)) is None:
        return
    actions = getattr(callback, "actions", None)
    protected = [handler for _, _, handler in handlers(cls, _attributes(callback), actions) if declaration_of(handler)]
    yield from filter(None, [misplaced_dispatch(cls), *map(misplaced_decorator, protected)])


def _view_class(callback: Any) -> Any:
    """The class behind the result of `as_view()` or of a router; None for a function."""
    found = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    return found if isinstance(found, type) else None


def _attributes(callback: Any) -> Mapping[str, Any]:
    """The attributes that `as_view()` will give the view."""
    return getattr(callback, "view_initkwargs", None) or getattr(callback, "initkwargs", {})


def _note(answers: Answers, options: Idempotency | None) -> str:
    if options is None and answers.declaration is not None:
        if not get_settings().enabled:
            return "IDEMPOTENCY['ENABLED'] is False"
        return f"only {', '.join(sorted(answers.declaration.options.methods))} protected"
    return "decided for each request" if answers.by_request else ""
