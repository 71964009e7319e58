"""What a view or viewset of the REST framework declares about its protection. The view is never called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rest_framework import decorators

from ..endpoints.declared import Declaration, layers_of, unsafe_verbs
from ..engine.declare.callables import dotted_name
from .mixins import IdempotencyMixin, _layers
from .view_call import without_request


def actions_of(callback: Any) -> Iterator[tuple[str, str | None]]:
    """Each unsafe verb that the view answers, with the name of the viewset's action; None: not a viewset."""
    actions = getattr(callback, "actions", None)
    for verb in unsafe_verbs(callback.cls, getattr(callback, "initkwargs", {}), actions):
        yield verb, None if actions is None else actions[verb]


def declarations(callback: Any) -> Iterator[Declaration]:
    """The declarations of the result of `as_view()` or of a router: one for each unsafe method."""
    for verb, action in actions_of(callback):
        yield declaration_of(callback.cls, getattr(callback, "initkwargs", {}), verb, action)


def declaration_of(cls: Any, attributes: Mapping[str, Any], verb: str, action: str | None) -> Declaration:
    """The declaration of one method of a view class.

    Args:
        attributes: those of the view's instance.
        action: the name of a viewset's action.
    """
    function = getattr(cls, action or verb)
    layers = layers_of(function)
    by_request = False
    if issubclass(cls, IdempotencyMixin):
        layers = _layers(cls, attributes, action) or layers
        by_request = cls.get_idempotency_options is not IdempotencyMixin.get_idempotency_options
    view = f"{dotted_name(cls)}.{action}" if action else dotted_name(cls)
    if getattr(function, "__globals__", None) is vars(decorators):
        # Made by @api_view: the class has the name of the function, and its methods keep the function in a closure.
        view = f"{cls.__module__}.{cls.__name__}"
        layers = layers_of(inspect.getclosurevars(function).nonlocals.get("func"))
    renderers = attributes.get("renderer_classes", cls.renderer_classes)
    return Declaration(
        method=verb.upper(),
        view=view,
        layers=layers,
        decides_by_request=by_request,
        answer=partial(without_request, renderers),
    )
