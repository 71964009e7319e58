"""Which framework does an object come from, and how does the package meet this framework?

An `Adapter` is registered for each framework, under the name of the framework's package. It is imported when the
package meets the first object of that framework, because the adapter imports the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from ..conf import Options
from .callers import default_scope
from .view_call import ViewCall

REGISTERED = {
    "ninja": "django_idempotency.ninja.operations.ADAPTER",
    "rest_framework": "django_idempotency.rest_framework.adapter.ADAPTER",
}

RUNNING = "_idempotency_ninja"
"""The attribute of a request that holds Django Ninja's running operation."""


class Adapter:
    """How the package meets a framework. This class is the adapter of plain Django, and the base of the others.

    What happens in one request is in the `ViewCall` of the framework: the caller, the parsed data, the response, and
    the framework's answer to an exception.
    """

    def is_request(self, candidate: Any) -> bool:
        return isinstance(candidate, HttpRequest)

    def call(
        self, request: Any, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ViewCall:
        """Return one call of a protected view, which has got this request."""
        return ViewCall(request, view, args, kwargs, options)

    def authenticated(self, request: Any) -> str | None:
        """Return the scope of the caller whom the framework's own authentication has found, or None."""
        return None

    def operations(self, callback: Any) -> Iterator[tuple[str, str, Any]] | None:
        """Return the HTTP method, the name and the declaration of each operation behind the callback of a URL. Return
        None if the callback is a view itself: a function or a class.
        """
        return None

    def response(self, returned: Any, target: Any) -> HttpResponseBase:
        """Make a response from what `reconcile` has returned without a request, for the protected callable `target`."""
        return returned  # type: ignore[no-any-return]


DJANGO = Adapter()


def adapter_of(*candidates: Any) -> Adapter:
    """Return the adapter of the first object that comes from a registered framework, else plain Django's."""
    for candidate in candidates:
        kind = candidate if isinstance(candidate, type) else type(candidate)
        homes = {base.__module__.partition(".")[0] for base in kind.__mro__}
        homes.add(str(getattr(candidate, "__module__", "")).partition(".")[0])
        for name in homes.intersection(REGISTERED):
            return _imported(REGISTERED[name])
    return DJANGO


def caller_scope(request: Any) -> str:
    adapter = adapter_of(request, getattr(request, RUNNING, None))
    return default_scope(request, partial(adapter.authenticated, request))


@lru_cache
def _imported(name: str) -> Adapter:
    adapter: Adapter = import_string(name)
    return adapter
