"""Which endpoints with unsafe HTTP methods does the project have, and which are protected?

This module reads the URLconf without calling any views. A view is shown as not protected if it calls `idempotent` in
its own code, or if a decorator above the protection doesn't use `functools.wraps`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import getclosurevars
from typing import Any, NamedTuple

from django.conf import settings
from django.urls import URLResolver, get_resolver
from django.utils.translation import override
from django.views.decorators import http as method_decorators

from ..engine.conf import SAFE_METHODS, Options, get_settings
from ..engine.declare.class_options import answers_in_dispatch, class_declaration, decides_by_request, handlers
from ..engine.declare.placement import misplaced_decorator, misplaced_dispatch
from ..engine.declare.registry import VERBS, Declaration, declaration_of
from ..engine.declare.wrappers import dotted_name, unwrapped
from ..engine.request.adapters import adapter_of

SHIPPED = (
    *("django.contrib.admin.", "django.contrib.auth.admin.", "django.contrib.contenttypes."),
    *("django.views.generic.base.RedirectView", "django_idempotency.", "ninja.openapi.views."),
)
"""The views of Django's admin (which uses `RedirectView`), of this package and of Django Ninja's documentation."""
SUFFIX = re.compile(r"\\\.\(\?P<\w+>|<drf_format_suffix")
"""What the REST framework's `format_suffix_patterns` adds to a route, as in `orders.json`."""
DECIDED = "decided for each request"
"""The note of an endpoint whose view overrides `get_idempotency_options()`."""
ANY = "ANY"
"""Stands for the methods of a view that declares none, such as a function without `require_POST` or a class that
answers in `dispatch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One unsafe HTTP method of a route.

    Attributes:
        method: for example "POST". "ANY" stands for an unprotected view that does not declare its methods.
        route: the same string as `request.resolver_match.route`.
        view: the dotted name of the function, or of the class and its action.
        options: every option with its value, or None if the endpoint is not protected. An endpoint with `observe` also
            has options, because it stores keys, although it runs each retry.
        note: why the endpoint is not protected, or another fact that the options do not show.
        own: False for views of Django, of Django Ninja and of this package, and for a route such as `orders.json`,
            which only adds a format to another route.
    """

    method: str
    route: str
    view: str
    options: Options | None = None
    note: str = ""
    own: bool = True

    @property
    def protected(self) -> bool:
        return self.options is not None and not self.options.observe

    @property
    def operation(self) -> str:
        """The name under which the endpoint's keys are stored; empty without `options`."""
        return "" if self.options is None else self.options.operation or f"{self.method} {self.route}"

    @property
    def mode(self) -> str:
        """The mode: "atomic", "leased", "leased, hold" or the like; for a backend's keys, "at least once, in 'events'".

        Empty if the endpoint is not protected.
        """
        return "" if self.options is None or not self.protected else self.options.runner.described()


def list_endpoints(urlconf: str | None = None) -> list[Endpoint]:
    """Return the endpoints for unsafe HTTP methods, in URLconf order. No database is read.

    Translated routes appear in the language set by `LANGUAGE_CODE`.

    Args:
        urlconf: the dotted path of the URLconf. Default: the project's.

    Returns:
        One `Endpoint` for each unsafe method of each route.

    Raises:
        IdempotencyConfigurationError: the options of an endpoint cannot work. Import errors of the URLconf propagate.
    """
    with override(settings.LANGUAGE_CODE):
        every = list(routes(get_resolver(urlconf)))
    plain = {id(callback) for route, callback in every if not SUFFIX.search(route)}
    endpoints = [
        Endpoint(
            method=method,
            route=route,
            view=answers.view,
            options=(options := answers.options_for(method)),
            note=_note(answers, options),
            own=not (SUFFIX.search(route) and id(callback) in plain) and not answers.view.startswith(SHIPPED),
        )
        for route, callback in every
        for answers in declarations_of(callback)
        for method in answers.methods()
    ]
    # If several routes match, Django uses the first. Django Ninja repeats a route for each of its operations.
    first: dict[tuple[str, str], Endpoint] = {}
    for endpoint in endpoints:
        first.setdefault((endpoint.route, endpoint.method), endpoint)
    return [*first.values()]


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the route (as in `ResolverMatch`) and the callback of each URL, in URLconf order."""
    for pattern in resolver.url_patterns:
        # The parts are joined in the same way as in Django's `request.resolver_match.route`.
        route = str(pattern.pattern)
        route = prefix + (route.removeprefix("^") if prefix else route)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, route)
        else:
            yield route, pattern.callback


class Answers(NamedTuple):
    """The view that handles one HTTP method, and how that view is protected.

    Attributes:
        method: None if the view does not declare its methods.
        view: its dotted name.
        declaration: None if it is not protected.
        by_request: whether the view can choose its options for each request.
    """

    method: str | None
    view: str
    declaration: Declaration | None
    by_request: bool = False

    def methods(self) -> list[str]:
        """Return the methods to list.

        If the view declares no methods, list those that are protected. If it is not protected either, list "ANY".
        """
        if self.method is not None:
            return [self.method]
        return [ANY] if self.declaration is None else sorted(self.declaration.options.methods)

    def options_for(self, method: str) -> Options | None:
        """Return the options for an HTTP method, or None. Raises `IdempotencyConfigurationError` if they conflict."""
        return None if self.declaration is None else self.declaration.options_for(method)


def declarations_of(callback: Any) -> Iterator[Answers]:
    """Yield an `Answers` for each unsafe method.

    For a view that declares no methods, yield a single `Answers` without a method.
    """
    for candidate in unwrapped(callback):
        if (operations := adapter_of(candidate).operations(candidate)) is not None:
            return (Answers(*each) for each in operations)
        if (cls := _view_class(candidate)) is not None:
            return _of_class(candidate, cls)
    return _of_function(callback)


def _of_class(callback: Any, cls: Any) -> Iterator[Answers]:
    """Yield an `Answers` for each unsafe handler.

    If the class answers in `dispatch`, yield a single `Answers` without a method.
    """
    whole = _whole(callback, cls)
    if answers_in_dispatch(cls):
        yield Answers(None, dotted_name(cls), whole)
    for method, name, _ in handlers(cls, _attributes(callback), getattr(callback, "actions", None)):
        yield of_handler(cls, _attributes(callback), method, name, whole)


def of_handler(
    cls: Any, attributes: Mapping[str, Any], method: str, name: str, whole: Declaration | None = None
) -> Answers:
    """Return the `Answers` for one HTTP method of a view class.

    Args:
        attributes: those of the view, or those that `as_view()` will set on it.
        name: the name of the handler: a verb such as "post", or the action of a viewset.
        whole: the declaration that protects the whole view, if there is one.
    """
    handler = getattr(cls, name)
    view = dotted_name(cls) if name == method.lower() else f"{dotted_name(cls)}.{name}"
    if getattr(handler, "__module__", None) == "rest_framework.decorators":
        # @api_view created the class from a function and named it after that function.
        view, handler = f"{cls.__module__}.{cls.__name__}", getclosurevars(handler).nonlocals["func"]
    declaration = whole or class_declaration(cls, attributes, name) or declaration_of(handler)
    return Answers(method, view, declaration, by_request=whole is None and decides_by_request(cls))


def _whole(callback: Any, cls: Any) -> Declaration | None:
    """Return the declaration that protects a whole class-based view, or None.

    This declaration is on the URL's callback or on a `dispatch` in the MRO. Every `dispatch` is searched, because an
    unprotected one, such as `LoginRequiredMixin`'s, can run before a protected one.
    """
    dispatches = (vars(base)["dispatch"] for base in cls.__mro__ if "dispatch" in vars(base))
    return next(
        (declaration for level in (callback, *dispatches) if (declaration := declaration_of(level)) is not None), None
    )


def _of_function(callback: Any) -> Iterator[Answers]:
    """Yield an `Answers` for each unsafe method that the function's `require_http_methods` decorators allow.

    If the function has no such decorator, yield a single `Answers` without a method.
    """
    view, declaration = dotted_name(callback), declaration_of(callback)
    # `require_http_methods` keeps its list of methods in a closure.
    levels = (level for level in unwrapped(callback) if getattr(level, "__globals__", None) is vars(method_decorators))
    enclosed = (getclosurevars(level).nonlocals for level in levels)
    declared = [set(variables["request_method_list"]) for variables in enclosed if "request_method_list" in variables]
    for method in sorted(set.intersection(*declared) - SAFE_METHODS) if declared else [None]:
        yield Answers(method, view, declaration)


def misplaced(callback: Any) -> Iterator[str]:
    """Yield the problems that system check E006 reports about a class-based view.

    Handlers that `IdempotencyMixin` protects are checked by `as_view()`, not here.
    """
    if (cls := _view_class(callback)) is None:
        return
    actions = getattr(callback, "actions", None)
    protected = [handler for _, _, handler in handlers(cls, _attributes(callback), actions) if declaration_of(handler)]
    yield from filter(None, [misplaced_dispatch(cls), *map(misplaced_decorator, protected)])


def _view_class(callback: Any) -> Any:
    """Return the class behind a callback created by `as_view()` or a router, or None for a function."""
    cls = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    return cls if isinstance(cls, type) else None


def _attributes(callback: Any) -> Mapping[str, Any]:
    """Return the attributes that `as_view()` will set on the view."""
    return getattr(callback, "view_initkwargs", None) or getattr(callback, "initkwargs", {})


def _note(answers: Answers, options: Options | None) -> str:
    if options is None and answers.declaration is not None:
        if not get_settings().enabled:
            return "IDEMPOTENCY['ENABLED'] is False"
        return f"only {', '.join(sorted(answers.declaration.options.methods))} protected"
    if options is not None and options.observe:
        return "only observed"
    if options is not None and answers.method is None:
        # The unprotected methods get a note instead of rows, because without `require_POST` it is unknown whether the
        # view answers them.
        rest = sorted({verb.upper() for verb in VERBS} - {*options.methods})
        return f"{', '.join(rest)} not protected" if rest else ""
    return DECIDED if answers.by_request else ""
