"""Times, operations and long texts as a person reads them."""

from __future__ import annotations

from datetime import datetime

from django.contrib.admindocs.views import simplify_regex
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_naive, localtime

KEY_LENGTH = 12
"""Characters of a key in the list: enough to tell keys apart by eye."""


def moment(value: datetime | None) -> str:
    """Return a time with seconds and zone: the books of the other side have another zone."""
    if value is None:
        return "-"
    if is_naive(value):  # USE_TZ = False: see check W004
        return f"{value:%Y-%m-%d %H:%M:%S}"
    local = localtime(value)
    return f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}"


def readable_operation(operation: str) -> str:
    """Return the route as a person reads it: `POST orders/<pk>/`, not `POST ^orders/(?P<pk>[0-9]+)/$`."""
    method, space, route = operation.partition(" ")
    if not any(mark in route for mark in "^$("):
        return operation
    return f"{method}{space}{simplify_regex(route).lstrip('/')}"


def shortened(text: str, length: int = KEY_LENGTH) -> SafeString | str:
    """Return the beginning of a text, with the whole text as its title."""
    if len(text) <= length:
        return text
    return format_html('<span title="{}">{}…</span>', text, text[:length])
