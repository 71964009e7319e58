"""The frameworks beside plain Django. Each is loaded when the project itself has imported the framework.

`apps` registers them: the engine imports nothing that stands above it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from django.http.response import HttpResponseBase

from ..conf import Idempotency
from ..request.view_call import ViewCall

if TYPE_CHECKING:
    from .registry import Declaration


class Framework(Protocol):
    """What the folder of a framework knows. A module with these functions will do."""

    def view_call(
        self,
        request: Any,
        view: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Idempotency,
    ) -> ViewCall | None:
        """The call of a protected view, if `request` is a request of this framework."""

    def declared(self, callback: Any) -> Iterator[Any] | None:
        """What protects the unsafe methods behind a URL's callback, if the callback is one of this framework."""

    def response(self, returned: Any, declaration: Declaration) -> HttpResponseBase | None:
        """The response that `reconcile` has returned without a request, if it is one of this framework."""


_loaders: dict[str, Callable[[], Framework]] = {}


def register(module: str, load: Callable[[], Framework]) -> None:
    """Let `load()` return the framework whose module has this name, once the project has imported that module."""
    _loaders[module] = load


def in_use() -> list[Framework]:
    """The frameworks that the project has imported."""
    return [load() for module, load in _loaders.items() if module in sys.modules]
