"""Options on classes: what a view's `idempotency` attribute means, nearest first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Any

from ..conf import Idempotency, as_options
from ..request.atomic_requests import take_over as take_over

Options = Idempotency | Mapping[str, Any] | None
"""What the attribute may hold; None: not protected."""
INHERIT = Idempotency()
"""Decides nothing: the settings and the defaults apply."""


def checked(value: Options) -> Idempotency | None:
    """Raises `IdempotencyConfigurationError` for options that cannot work."""
    return None if value is None else as_options(value)


def class_layers(cls: Any, instance: Mapping[str, Any], nearer: tuple[Options, ...] = ()) -> tuple[Any, ...]:
    """The option layers of a class-based view, nearest first, up to the first None. Empty: not protected.

    The order is: the instance, `nearer`, the class, its base classes.

    Args:
        instance: the attributes of the view, or the attributes that `as_view()` will give it.
        nearer: layers between instance and class, such as those of an action.
    """
    own = (instance["idempotency"],) if "idempotency" in instance else ()
    layers = (*own, *nearer, *_declared_layers(cls, cls.idempotency))
    return tuple(takewhile(lambda layer: layer is not None, layers)) if None in layers else layers


@lru_cache(maxsize=1024)
def _declared_layers(cls: Any, nearest: Options) -> tuple[Any, ...]:
    """The `idempotency` attributes along the MRO.

    `nearest` is part of the cache's key, because a test may replace the attribute of a class.
    """
    return tuple(vars(base)["idempotency"] for base in cls.__mro__ if "idempotency" in vars(base))
