"""One set of options, out of all layers: action, class, base classes, setting, defaults."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.core.signals import setting_changed

from ...exceptions import IdempotencyConfigurationError
from .options import DEFAULTS, Idempotency
from .project_settings import get_settings


@lru_cache(maxsize=1024)
def resolve(*layers: Idempotency) -> Idempotency:
    """Merge the layers, nearest first, over the project's settings and the defaults: every option has a value.

    The result is cached for these layer objects. Changing the setting (`override_settings`) empties the cache.

    Raises:
        IdempotencyConfigurationError: for options that contradict each other.
    """
    merged = DEFAULTS.given()
    for layer in reversed((*layers, get_settings().options)):
        merged.update(layer.given())
    if merged["lease"] is None:
        for name in LEASED_ONLY:
            # A project's default may be meant for its leased views. On a view without a lease it is a mistake.
            if merged[name] != getattr(DEFAULTS, name) and any(name in layer.given() for layer in layers):
                _refuse_without_lease(name, merged[name])
        if merged["in_progress_status"] == 202:
            merged["in_progress_status"] = 409
    return Idempotency(**merged)


LEASED_ONLY = ("on_abandoned", "reconcile", "in_progress_status")


def _refuse_without_lease(name: str, value: Any) -> None:
    if value != 429:
        raise IdempotencyConfigurationError(
            f"idempotency option {name}={value!r} is about leased mode. Pass lease=timedelta(minutes=2), for example, "
            f"or leave {name} out."
        )


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "IDEMPOTENCY":
        get_settings.cache_clear()
        resolve.cache_clear()


setting_changed.connect(_forget)
