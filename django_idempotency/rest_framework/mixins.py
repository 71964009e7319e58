"""The mixin for views and viewsets of the REST framework."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http.response import HttpResponseBase
from django.views import View
from rest_framework.request import Request
from rest_framework.views import APIView

from ..engine.conf import SAFE_METHODS
from ..engine.declare.class_options import DeclaredOptions
from ..engine.request.pipeline import as_django_would, handle
from ..exceptions import IdempotencyConfigurationError
from .view_call import RestFrameworkViewCall


class IdempotencyMixin(DeclaredOptions):
    """Run the POST and PATCH handlers of a view or viewset once for each idempotency key.

    Handlers run in a transaction that the mixin opens.

    The mixin stands before the framework's classes: `class OrderViewSet(IdempotencyMixin, ModelViewSet)`.
    Authentication, permissions, throttles and content negotiation come first, for a replay too.

    Args:
        idempotency: an `Idempotency` or a dict of its options, for the class or `@action(…, idempotency=…)`; None:
            not protected. Other options fall through to the base classes, the settings and the defaults.
        idempotency_actions: the same by the name of a handler, such as a standard action of a viewset.

    Raises:
        IdempotencyConfigurationError: (a TypeError) for a wrong order of bases or impossible options, when the class
            is made.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        mro = cls.__mro__
        if View in mro and APIView not in mro:
            raise IdempotencyConfigurationError(
                f"{cls.__name__} is not a view of the REST framework. "
                "Its mixin is django_idempotency.views.IdempotencyMixin."
            )
        if APIView in mro and mro.index(APIView) < mro.index(IdempotencyMixin):
            raise IdempotencyConfigurationError(
                f"IdempotencyMixin must stand before the framework's classes:\n\n"
                f"    class {cls.__name__}(IdempotencyMixin, …, APIView): ..."
            )

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        parent: Any = super()
        verb = request.method.lower()
        handler = getattr(self, verb, None) if verb in self.http_method_names else None  # type: ignore[attr-defined]
        if verb.upper() in SAFE_METHODS or handler is None:
            with as_django_would(request):
                return parent.dispatch(request, *args, **kwargs)  # type: ignore[no-any-return]
        # Set on the instance, which lives for one request. The framework calls it after initial().
        setattr(self, verb, partial(self._protected, handler))
        return parent.dispatch(request, *args, **kwargs)  # type: ignore[no-any-return]

    def _protected(
        self, handler: Callable[..., HttpResponseBase], request: Request, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        options = self.options_for(handler, str(request.method).upper())
        if options is None:
            with as_django_would(request._request):
                return handler(request, *args, **kwargs)
        return handle(
            RestFrameworkViewCall(request._request, handler, (request, *args), kwargs, options, asked_with=request)
        )


# drf-spectacular would make the docstring the description of each operation of the project.
IdempotencyMixin.__doc__ = None
