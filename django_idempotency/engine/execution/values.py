"""Results as text: JSON for values; model and primary key for model instances."""

from __future__ import annotations

import json
from typing import Any

from django.apps import apps
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models

from ...exceptions import ResultNotStorable

MAX_STEP_BYTES = 1024 * 1024
"""The result of a step is kept for each attempt to come, and read with all others. A megabyte is no receipt."""


def encode_step(value: Any) -> str:
    """The text to keep of a step's result. Raises `ResultNotStorable` as `encode` does, and for too long a text."""
    kept = encode(value)  # ASCII: a character is a byte
    if len(kept) > MAX_STEP_BYTES:
        raise ResultNotStorable(
            f"the result of a step takes {len(kept)} bytes as JSON, and {MAX_STEP_BYTES} are kept at most. Return what "
            "the next steps need, such as the id of the charge."
        )
    return kept


def encode(value: Any) -> str:
    """The text to keep. Raises `ResultNotStorable` for what is neither JSON nor a saved model instance."""
    if isinstance(value, models.Model):
        if value.pk is None or value._state.adding:
            raise ResultNotStorable(f"{value!r} has not been saved, so it cannot be fetched again. Return it saved.")
        kept: dict[str, Any] = {"model": value._meta.label, "pk": value.pk, "using": value._state.db}
    else:
        kept = {"value": value}
    try:
        # NaN and Infinity are no JSON, although Python writes them.
        return json.dumps(kept, cls=DjangoJSONEncoder, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultNotStorable(
            f"{type(value).__qualname__} cannot be kept as JSON ({error}). "
            "Return JSON values (dict, list, str, int, …) or one saved model instance."
        ) from error


def decode(text: str | None) -> Any:
    """The value that was kept, or None if there was none. A model instance is fetched: raises its `DoesNotExist`."""
    if text is None:
        return None
    kept = json.loads(text)
    if "model" in kept:
        return apps.get_model(kept["model"])._base_manager.using(kept["using"]).get(pk=kept["pk"])
    return kept["value"]


def as_kept(value: Any, text: str) -> Any:
    """The value as a retry will see it: a tuple becomes a list, a Decimal a string. A difference shows at once."""
    return value if isinstance(value, models.Model) else decode(text)
