"""What can an operation refer to?"""

from __future__ import annotations

from uuid import UUID

from django.db import models

from ...exceptions import IdempotencyConfigurationError
from ..protocol.digests import has_controls
from ..protocol.outcomes import Resource

MAX_TYPE, MAX_ID = 100, 255
"""The widths of the database columns, in characters."""


def resource_of(what: models.Model | str, id_: str | int | UUID | None) -> Resource:
    """Return a resource's type and id. Raises `IdempotencyConfigurationError` if either can't be kept."""
    if isinstance(what, models.Model):
        # An instance has its own id. A second id passed along with it is rejected below.
        id_ = None if id_ is not None or what.pk is None else str(what.pk)
        what = what._meta.label_lower
    text = str(id_) if isinstance(id_, str | int | UUID) and not isinstance(id_, bool) else ""
    typed = isinstance(what, str) and _fits(what, MAX_TYPE) and not any(c.isspace() for c in what)
    if not (typed and _fits(text, MAX_ID)):
        raise IdempotencyConfigurationError(
            f"refer_to({what!r:.200}, {id_!r:.300}): pass a saved model instance alone, or a type of 1 to {MAX_TYPE} "
            f"characters without spaces and an id: a str, an int or a UUID of 1 to {MAX_ID} characters without control "
            "characters, as in refer_to('order', '59')."
        )
    return what, text


def _fits(text: str, width: int) -> bool:
    return 0 < len(text) <= width and not has_controls(text)
