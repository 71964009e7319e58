"""This module formats times, operations, long texts and encrypted texts for the pages of the admin.

The templates escape each text. No function of this module sends a query to a database.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from django.contrib.admindocs.views import simplify_regex
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_naive, localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.protocol.error_text import HIDDEN
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
    """Return the HTML badge of a state. The badge shows a shape and the name of the state."""
    html = '<span class="idempotency-badge idempotency-{}"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(html, state, SHAPES[state], STATES[state].label)


def moment(value: datetime | None) -> str:
    """Return a time as a text. The text shows the time in the local time zone, and then in UTC.

    The time in UTC is useful because the logs of other services often have times in UTC.
    """
    if value is None:
        return "-"
    if is_naive(value):  # If USE_TZ is False, a time has no zone. See the system check W004.
        return f"{value:{FORMAT}}"
    local = f"{localtime(value):{FORMAT} %Z}"
    return local if local.endswith(" UTC") else f"{local} ({value.astimezone(UTC):{FORMAT}} UTC)"


def readable_operation(operation: str) -> str:
    """Return a readable name of an operation.

    For example, the stored name `POST ^orders/(?P<pk>[0-9]+)/$` becomes `POST orders/<pk>/`.
    """
    method, space, route = operation.partition(" ")
    if not any(mark in route for mark in "^$("):
        return operation
    return f"{method}{space}{simplify_regex(route).lstrip('/')}"


def shortened(text: str, length: int = KEY_LENGTH) -> SafeString | str:
    """Return the beginning of a long text, with the whole text as a tooltip. Return a short text unchanged."""
    text = encodable(text)
    if len(text) <= length:
        return text
    return format_html('<span title="{}">{}…</span>', text, text[:length])


def readable_error(row: Row, column: str, stored: str | None, *step: str, allowed: bool) -> str:
    """Return the text of a stored error, or a sentence that says why the page hides the error.

    An encrypted error is hidden from users without permission, because the error can contain secrets.
    """
    if is_sealed(stored) and not allowed:
        return str(ENCRYPTED)
    try:
        return encodable(unseal(row, column, stored, *step) or "")
    except NotDecryptable as error:  # The page shows why the text cannot be decrypted.
        return str(error)


def readable_response(row: IdempotencyKey) -> str:
    """Return the stored response (status, headers and body) as a text. If the page cannot show the response, the text
    says why.
    """
    try:
        kept = unseal_response(row, row)
        fields = [f"HTTP {kept.status_code}", *(f"{name}: {value}" for name, value in kept.headers)]
    except NotDecryptable as error:
        return str(error)
    except (RecursionError, TypeError, ValueError):
        return _("This response cannot be read.")
    return encodable("\n".join([*fields, "", _("Not stored.") if kept.body is None else readable_body(kept.body)]))


def readable_body(body: bytes) -> str:
    """Return the beginning of a body as text. If the body is not a text in UTF-8, return the size of the body."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return _("%(size)d bytes that are no text in UTF-8") % {"size": len(body)}
    return cut(body)


def cut(text: bytes) -> str:
    """Return the beginning of a text.

    The function does not indent JSON, because it would have to parse the JSON first. A JSON parser can change a number.
    If a JSON object has the same name twice, a JSON parser keeps only one of the two values.
    """
    more = "\n" + _("… (%(size)d bytes in all)") % {"size": len(text)} if len(text) > SHOWN else ""
    return encodable(text[:SHOWN].decode(errors="replace") + more)


def as_utf8(json_text: str) -> bytes:
    """Return JSON text in UTF-8. A surrogate character becomes an escape sequence, such as "\\ud800"."""
    return json_text.encode(errors="backslashreplace")


def encodable(text: str) -> str:
    """Replace each character that no reader sees with an escape sequence of JSON, so that results can still be pasted.

    A surrogate character is one of them, because UTF-8 cannot encode it. Lines and tabs stay.
    """
    return HIDDEN.sub(lambda found: found[0] if found[0] in "\n\t" else json.dumps(found[0])[1:-1], text)
