"""Which routes are protected above a check of who is calling, so that a replay would skip the check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..engine.conf import resolve
from ..engine.declare.class_options import class_layers
from ..engine.declare.placement import misplaced_decorator, misplaced_dispatch, misplaced_mixin
from ..exceptions import IdempotencyConfigurationError
from .declared import layers_of, unsafe_verbs


def misplaced(callback: Any) -> Iterator[str]:
    """What is wrong with the class behind the result of `as_view()` or of a router. Nothing for a function."""
    view_class = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    if view_class is None:
        return
    initkwargs = getattr(callback, "view_initkwargs", None) or getattr(callback, "initkwargs", {})
    actions = getattr(callback, "actions", None)
    problems = [misplaced_dispatch(view_class)]
    for verb in unsafe_verbs(view_class, initkwargs, actions):
        name = verb if actions is None else actions[verb]
        handler = getattr(view_class, name)
        if _protected_by_mixin(view_class, initkwargs, name, verb.upper()):
            problems.append(misplaced_mixin(handler))
        elif layers_of(handler) is not None:
            problems.append(misplaced_decorator(handler))
    yield from (problem for problem in problems if problem is not None)


def _protected_by_mixin(view_class: Any, initkwargs: dict[str, Any], name: str, method: str) -> bool:
    if not hasattr(view_class, "get_idempotency_options"):
        return False
    actions = getattr(view_class, "idempotency_actions", {})
    layers = class_layers(view_class, initkwargs, (actions[name],) if name in actions else ())
    try:
        return bool(layers) and method in resolve(*layers).methods
    except IdempotencyConfigurationError:
        return False  # E007 reports it
