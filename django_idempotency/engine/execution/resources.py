"""What an operation is about: a type and an id, such as ("shop.order", "59")."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Model

from ...exceptions import IdempotencyConfigurationError
from ..protocol.digests import has_controls
from ..protocol.outcomes import Resource

MAX_TYPE, MAX_ID = 100, 255
"""Characters: the widths of the columns."""


def resource_of(what: Model | str, id_: str | int | UUID | None) -> Resource:
    """The type and the id to keep. Raises `IdempotencyConfigurationError` for what cannot be kept and found again."""
    if isinstance(what, Model):
        return _of_instance(what, id_)
    named = isinstance(what, str) and 0 < len(what) <= MAX_TYPE and not any(c.isspace() for c in what)
    if not named or has_controls(what):
        raise IdempotencyConfigurationError(
            f"refer_to({what!r:.200}, …): give a saved model instance, or a type of 1 to {MAX_TYPE} characters without "
            "spaces, as in refer_to('order', '59')."
        )
    text = str(id_) if isinstance(id_, str | int | UUID) and not isinstance(id_, bool) else ""
    if not 0 < len(text) <= MAX_ID or has_controls(text):
        raise IdempotencyConfigurationError(
            f"refer_to({what!r}, {id_!r:.300}): give the id as a str, an int or a UUID of 1 to {MAX_ID} characters "
            "without control characters, as in refer_to('order', '59')."
        )
    return what, text


def _of_instance(instance: Model, id_: object) -> Resource:
    label = instance._meta.label_lower
    if id_ is not None:
        raise IdempotencyConfigurationError(
            f"refer_to(<{label}>, {id_!r:.300}): a model instance has its own id. Give the instance alone."
        )
    if instance.pk is None:
        raise IdempotencyConfigurationError(
            f"refer_to(<{label}>): the instance has no primary key yet. Save it before refer_to()."
        )
    return resource_of(label, str(instance.pk))
