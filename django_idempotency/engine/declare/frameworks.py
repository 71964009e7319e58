"""The frameworks beside plain Django. Each is loaded when the project itself has imported the framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

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


MODULES = {
    "ninja": "django_idempotency.ninja.operations",
    "rest_framework": "django_idempotency.rest_framework.view_call",
}
"""By name, because the engine imports nothing that stands above it."""


def in_use() -> list[Framework]:
    """The frameworks that the project has imported."""
    return [cast(Framework, import_module(ours)) for name, ours in MODULES.items() if name in sys.modules]
