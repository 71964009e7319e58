"""Options on classes: what a view's `idempotency` attribute means, nearest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from ..conf import Idempotency, as_options, resolve
from ..request.atomic_requests import TakenOver

Options = Idempotency | Mapping[str, Any] | None
"""What the attribute may hold; None: not protected."""
INHERIT = Idempotency()
"""Decides nothing: the settings and the defaults apply."""


def checked(value: Options) -> Idempotency | None:
    """Raises `IdempotencyConfigurationError` for options that cannot work."""
    return None if value is None else as_options(value)


def class_layers(cls: Any, instance: Mapping[str, Any], nearer: tuple[Options, ...] = ()) -> tuple[Any, ...]:
    """The instance, `nearer`, class, base classes: nearest first, up to the first None. Empty: not protected.

    instance: the attributes of the view, or what `as_view()` will make its attributes.
    """
    candidates = [
        *([instance["idempotency"]] if "idempotency" in instance else []),
        *nearer,
        *(vars(base)["idempotency"] for base in cls.__mro__ if "idempotency" in vars(base)),
    ]
    return tuple(takewhile(lambda layer: layer is not None, candidates))


def take_over(view: Any, layers: Callable[[], tuple[Any, ...]]) -> None:
    """Mark what `as_view()` returned. See Note [Taking ATOMIC_REQUESTS over]."""
    opted_out = getattr(view, "_non_atomic_requests", ())
    view._non_atomic_requests = TakenOver(opted_out, lambda: resolve(*layers()))
