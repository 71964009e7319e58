"""What protects a method of a view or viewset of the REST framework: read, never called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from rest_framework import decorators

from ..endpoints.declared import Handler, dotted, layers_of
from ..engine.conf import SAFE_METHODS
from .mixins import IdempotencyMixin, _layers


def handlers(callback: Any) -> Iterator[Handler]:
    """The unsafe methods of what `as_view()` or a router has returned."""
    cls, initkwargs = callback.cls, getattr(callback, "initkwargs", {})
    actions = getattr(callback, "actions", None)  # a viewset's: method to name
    for verb in initkwargs.get("http_method_names", cls.http_method_names):
        action = None if actions is None else actions.get(verb, "")
        if verb.upper() not in SAFE_METHODS and hasattr(cls, verb if action is None else action):
            yield handler_of(cls, initkwargs, verb, action)


def handler_of(cls: Any, attributes: Mapping[str, Any], verb: str, action: str | None) -> Handler:
    """One method of a view class; `attributes` are those of its instance, `action` is a viewset's."""
    function = getattr(cls, action or verb)
    layers = layers_of(function)
    by_request = False
    if issubclass(cls, IdempotencyMixin):
        layers = _layers(cls, attributes, action) or layers
        by_request = cls.get_idempotency_options is not IdempotencyMixin.get_idempotency_options
    view = f"{dotted(cls)}.{action}" if action else dotted(cls)
    if getattr(function, "__globals__", None) is vars(decorators):
        # Made by @api_view: the class has the name of the function, which its handlers keep in a closure.
        view = f"{cls.__module__}.{cls.__name__}"
        layers = layers_of(inspect.getclosurevars(function).nonlocals.get("func"))
    return Handler(method=verb.upper(), view=view, layers=layers, decides_by_request=by_request)
