"""The mixin for class-based views of plain Django."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from django.http.response import HttpResponseBase
from django.views import View

from .engine.conf import SAFE_METHODS, Idempotency
from .engine.declare.class_options import DeclaredOptions
from .engine.declare.decorators import protected_form
from .engine.declare.placement import is_drf_view
from .engine.request.pipeline import as_django_would
from .engine.request.view_call import ViewCall
from .exceptions import IdempotencyConfigurationError

__all__ = ["IdempotencyMixin"]

HANDLERS = sorted({*View.http_method_names} - {"head", "options", "trace"})
"""Every `View` has the handlers that are left out, or is given them."""


class IdempotencyMixin(DeclaredOptions):
    """Run the POST and PATCH handlers of a `View` once for each idempotency key: `FormView`, `CreateView`, your own.

    Handlers run in a transaction that the mixin opens. They may be `def` or `async def`.

    The mixin stands before the view class: `class OrderView(LoginRequiredMixin, IdempotencyMixin, CreateView)`. Only
    the handler is wrapped, so every other `dispatch`, such as that of an access mixin, runs first, in each order of the
    bases and for a replay too.

    Args:
        idempotency: an `Idempotency` or a dict of its options; None: not protected. Other options fall through.

    Raises:
        IdempotencyConfigurationError: (a TypeError) for a wrong order of bases or impossible options, when the class
            is made.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        mro = cls.__mro__
        if is_drf_view(cls):
            raise IdempotencyConfigurationError(
                f"{cls.__name__} is a view of the REST framework. Its mixin is "
                "django_idempotency.rest_framework.IdempotencyMixin."
            )
        if View in mro and mro.index(View) < mro.index(IdempotencyMixin):
            raise IdempotencyConfigurationError(
                "IdempotencyMixin must stand before the view class, and after access mixins:\n\n"
                f"    class {cls.__name__}(LoginRequiredMixin, IdempotencyMixin, …, View): ..."
            )

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., HttpResponseBase]:
        if not any(hasattr(cls, verb) for verb in HANDLERS):
            raise IdempotencyConfigurationError(
                f"{cls.__name__} has no handlers for the mixin to protect: its dispatch() answers by itself. Use "
                '@method_decorator(idempotent, name="dispatch").'
            )
        view: Callable[..., HttpResponseBase] = super().as_view(**initkwargs)
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        parent: Any = super()
        options = self._options_for(request)
        if options is None:
            # An asynchronous handler has not run yet when dispatch() returns, and Django opens no transaction for it.
            with nullcontext() if self.view_is_async else as_django_would(request):  # type: ignore[attr-defined]
                return parent.dispatch(request, *args, **kwargs)
        verb = request.method.lower()

        def call_of(view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewCall:
            return ViewCall(request=args[0], view=view, args=args, kwargs=kwargs, options=options)

        # Set on the instance, which lives for one request. View.dispatch() calls it last.
        setattr(self, verb, protected_form(getattr(self, verb), call_of))
        return parent.dispatch(request, *args, **kwargs)

    def _options_for(self, request: Any) -> Idempotency | None:
        verb = request.method.lower()
        answered = verb in self.http_method_names and hasattr(self, verb)  # type: ignore[attr-defined]
        if verb.upper() in SAFE_METHODS or not answered:
            return None
        return self.options_for(getattr(self, verb), verb.upper())
