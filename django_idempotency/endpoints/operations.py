"""What the project has declared about a stored operation: its options, and its `reconcile`, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase
from django.utils import translation

from ..engine.conf import Idempotency
from ..engine.declare.registry import registered
from ..engine.protocol.outcomes import Finished
from ..engine.request.view_call import found
from .listing import declarations_of, methods_of
from .routes import Route, routes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoverable:
    """A leased operation that has a `reconcile`.

    Attributes:
        options: resolved, every option has a value.
        reconcile: the option.
        finished: makes the end of the operation of what `reconcile` has returned.
    """

    options: Idempotency
    reconcile: Callable[[Any], Any]
    finished: Callable[[Any], Finished[Any]]


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """Nothing can be asked. `reason` says why, and what to do."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """One view, or one function of `once`, that has the name of the operation."""

    options: Idempotency
    finished: Callable[[Any], Finished[Any]]
    decides_by_request: bool = False


class Operations:
    """The operations of a URLconf, and those of `once` in imported modules. Calls no view.

    Args:
        urlconf: dotted path; default: the project's.
    """

    def __init__(self, urlconf: str | None = None) -> None:
        self._urlconf = urlconf
        self._known: dict[str, Recoverable | Unrecoverable] = {}

    def find(self, operation: str) -> Recoverable | Unrecoverable:
        """Find who can be asked about an operation, by the name that the key table holds.

        Raises:
            IdempotencyConfigurationError: for options that cannot work. What importing the URLconf raises propagates.
        """
        if operation not in self._known:
            once = [_of_once(declaration) for declaration in registered(operation)]
            found = once or list(self._views.get(operation, ())) or self._in_other_languages(operation)
            self._known[operation] = _judged(operation, found)
        return self._known[operation]

    @cached_property
    def _views(self) -> dict[str, list[_Declared]]:
        found: dict[str, list[_Declared]] = {}
        for route in routes(self._urlconf):
            for name, view in _of_route(route):
                found.setdefault(name, []).append(view)
        return found

    def _in_other_languages(self, operation: str) -> list[_Declared]:
        """A route may be translated. The operation has its name in the language of the client."""
        for language, _ in settings.LANGUAGES if settings.USE_I18N else ():
            with translation.override(language):
                found = [
                    view
                    for route in routes(self._urlconf)
                    if operation.endswith(f" {route.route}")
                    for name, view in _of_route(route)
                    if name == operation
                ]
            if found:
                return found
        return []


def _of_once(declaration: Any) -> _Declared:
    return _Declared(
        options=declaration.options, finished=declaration.finished, decides_by_request=declaration.by_request
    )


def _of_route(route: Route) -> Iterator[tuple[str, _Declared]]:
    for declaration in declarations_of(route.callback):
        for method in methods_of(declaration):
            if (options := declaration.options_for(method)) is not None:
                finished = partial(_final_response, declaration.answer, options)
                by_request = declaration.decides_by_request
                view = _Declared(options=options, finished=finished, decides_by_request=by_request)
                yield options.operation or f"{method} {route.route}", view


def _final_response(
    answer: Callable[[Any], HttpResponseBase], options: Idempotency, returned: Any
) -> Finished[HttpResponseBase]:
    return found(answer(returned), options)


def _judged(operation: str, found: list[_Declared]) -> Recoverable | Unrecoverable:
    """The first rule that applies decides."""
    if not found:
        return Unrecoverable(
            "no view of the URLconf and no imported @once function has this operation. A view may be renamed or "
            "removed. run_once without the decorator cannot be found: use @once. Import a task's module with --import"
        )
    if any(view.decides_by_request for view in found):
        return Unrecoverable("its view decides its options for each request (get_idempotency_options)")
    first = found[0]
    if any(view.options.reconcile is not first.options.reconcile for view in found):
        return Unrecoverable("several views have this operation, with different reconcile")
    if first.options.lease is None:
        return Unrecoverable("its view has no lease")
    if first.options.reconcile is None:
        if first.options.on_abandoned == "hold":
            return Unrecoverable("on hold without reconcile: a person decides")
        return Unrecoverable("no reconcile: it waits for the next retry of the client, or for a person")
    return Recoverable(options=first.options, reconcile=first.options.reconcile, finished=first.finished)
