"""How the pages of the admin write times, operations, long texts, and texts that are stored encrypted.

The templates escape each text. None of these functions sends a query to a database.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib.admindocs.views import simplify_regex
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_naive, localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.stores.sealing import Row, is_sealed, unseal, unseal_response
from ..engine.stores.states import STATES
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey

KEY_LENGTH = 12
"""The list shows this number of characters of a key. These characters are enough to tell keys apart."""
FORMAT = "%Y-%m-%d %H:%M:%S"
SHOWN = 64 * 1024
"""The most bytes of one text that a page shows."""
ENCRYPTED = gettext_lazy("Encrypted. You need the permission “Can view stored response bodies” to see the text.")
SHAPES = {"in_doubt": "?", "half_done": "◐", "stuck": "▲", "failed": "✕", "in_flight": "▶", "completed": "✓"}
"""The shape before the name of each state, so that a reader needs no colours. Each state has a style sheet class."""


def badge(state: str) -> SafeString:
    """Return the badge of a state: a shape and a word."""
    html = '<span class="idempotency-badge idempotency-{}"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(html, state, SHAPES[state], STATES[state].label)


def moment(value: datetime | None) -> str:
    """Return a time with seconds and zone, and the same time in UTC, because the other side often logs UTC times."""
    if value is None:
        return "-"
    if is_naive(value):  # because USE_TZ is False: see check W004
        return f"{value:{FORMAT}}"
    local = f"{localtime(value):{FORMAT} %Z}"
    return local if local.endswith(" UTC") else f"{local} ({value.astimezone(UTC):{FORMAT}} UTC)"


def readable_operation(operation: str) -> str:
    """Return the route as a person reads it: `POST orders/<pk>/`, not `POST ^orders/(?P<pk>[0-9]+)/$`."""
    method, space, route = operation.partition(" ")
    if not any(mark in route for mark in "^$("):
        return operation
    return f"{method}{space}{simplify_regex(route).lstrip('/')}"


def shortened(text: str, length: int = KEY_LENGTH) -> SafeString | str:
    """Return the beginning of a text. Its HTML title (the tooltip) is the whole text."""
    if len(text) <= length:
        return text
    return format_html('<span title="{}">{}…</span>', text, text[:length])


def readable_error(row: Row, column: str, stored: str | None, *step: str, allowed: bool) -> str:
    """Return a stored error, or a sentence that says why the page hides it. An encrypted error can contain secrets."""
    if is_sealed(stored) and not allowed:
        return str(ENCRYPTED)
    try:
        return unseal(row, column, stored, *step) or ""
    except NotDecryptable as error:  # the person still needs the rest of the page
        return str(error)


def readable_response(row: IdempotencyKey) -> str:
    """Return the stored status, headers and body, or a sentence that says why the page cannot show them."""
    try:
        kept = unseal_response(row, row)
        fields = [f"HTTP {kept.status_code}", *(f"{name}: {value}" for name, value in kept.headers)]
    except NotDecryptable as error:
        return str(error)
    except (RecursionError, TypeError, ValueError):
        return _("This response cannot be read.")
    return encodable("\n".join([*fields, "", _("Not stored.") if kept.body is None else readable_body(kept.body)]))


def readable_body(body: bytes) -> str:
    """Return a body as it is stored. If the body is not a text, return its size."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return _("%(size)d bytes that are no text in UTF-8") % {"size": len(body)}
    return cut(body)


def cut(text: bytes) -> str:
    """Return the beginning of a text. JSON is not indented, because parsing could change a number or lose a name."""
    more = "\n" + _("… (%(size)d bytes in all)") % {"size": len(text)} if len(text) > SHOWN else ""
    return encodable(text[:SHOWN].decode(errors="replace") + more)


def as_utf8(json_text: str) -> bytes:
    """Encode JSON. A single surrogate (half of a pair) becomes an escape, as in JSON: "\\ud800"."""
    return json_text.encode(errors="backslashreplace")


def encodable(text: str) -> str:
    """Replace each single surrogate (half of a pair) with an escape, because no page can encode a surrogate."""
    return as_utf8(text).decode()
