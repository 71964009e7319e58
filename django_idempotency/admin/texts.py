"""Format times, operations, long text and encrypted text for the admin. Nothing here runs a query; the templates
do the escaping.
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
from ..engine.stores.sealing import Row, is_sealed, unseal_response, unsealed
from ..engine.stores.states import STATES
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey

KEY_LENGTH = 12
"""How many characters of a key the list shows, enough to tell keys apart."""
FORMAT = "%Y-%m-%d %H:%M:%S"
SHOWN = 64 * 1024
"""The maximum number of bytes of text that a page shows."""
ENCRYPTED = gettext_lazy("Encrypted. To see the text, you need the permission “Can view stored response bodies”.")
NOTHING = format_html('<span class="{}">-</span>', "idempotency-empty")
"""An empty cell. On a phone, where keys are cards, it isn't shown."""
SHAPES = {"in_doubt": "?", "half_done": "◐", "stuck": "▲", "failed": "✕", "in_flight": "▶", "completed": "✓"}
"""The shape before each state's name, so that readers don't depend on colours. Each state has a CSS class."""


def badge(state: str) -> SafeString:
    """A state's shape and name, as HTML."""
    html = '<span class="idempotency-badge idempotency-{}"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(html, state, SHAPES[state], STATES[state].label)


def moment(value: datetime | None) -> str:
    """A time in the local zone and in UTC, which other services often use in their logs."""
    if value is None:
        return "-"
    if is_naive(value):  # with USE_TZ = False, see the system check W004
        return f"{value:{FORMAT}}"
    local = f"{localtime(value):{FORMAT} %Z}"
    return local if local.endswith(" UTC") else f"{local} ({value.astimezone(UTC):{FORMAT}} UTC)"


def readable_operation(operation: str) -> str:
    """Show the stored name `POST ^orders/(?P<pk>[0-9]+)/$` as `POST orders/<pk>/`."""
    method, space, route = operation.partition(" ")
    if not any(mark in route for mark in "^$("):
        return operation
    return f"{method}{space}{simplify_regex(route).lstrip('/')}"


def shortened(text: str, length: int = KEY_LENGTH) -> SafeString | str:
    """The beginning of long text, with the whole text as a tooltip. Short text is shown in full."""
    text = encodable(text)
    if len(text) <= length:
        return text
    return format_html('<span title="{}">{}…</span>', text, text[:length])


def readable_error(row: Row, column: str, stored: str | None, *step: str, allowed: bool) -> str:
    """The text of a stored error, or why it is hidden.

    An encrypted error is hidden from users without permission, because it can contain secrets.
    """
    if is_sealed(stored) and not allowed:
        return str(ENCRYPTED)
    return encodable(unsealed(row, column, stored, *step) or "")


def readable_response(row: IdempotencyKey) -> str:
    """The stored response (status, headers and body) as text, or why it cannot be shown."""
    try:
        snapshot = unseal_response(row, row)
        fields = [f"HTTP {snapshot.status_code}", *(f"{name}: {value}" for name, value in snapshot.headers)]
    except NotDecryptable as error:
        return str(error)
    except (RecursionError, TypeError, ValueError):
        return _("This response cannot be read.")
    return encodable(
        "\n".join([*fields, "", _("Not stored.") if snapshot.body is None else readable_body(snapshot.body)])
    )


def readable_body(body: bytes) -> str:
    """The beginning of a body as text, or its size if it is not UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return _("%(size)d bytes that are not UTF-8 text") % {"size": len(body)}
    return cut(body)


def cut(text: bytes) -> str:
    """The beginning of the text, unchanged.

    JSON is not indented, because parsing it could change numbers, and would drop one of two values with the same name.
    """
    more = "\n" + _("… (%(size)d bytes in all)") % {"size": len(text)} if len(text) > SHOWN else ""
    return encodable(text[:SHOWN].decode(errors="replace") + more)


def as_utf8(json_text: str) -> bytes:
    """Encode JSON as UTF-8. A surrogate character becomes an escape sequence such as "\\ud800"."""
    return json_text.encode(errors="backslashreplace")


def encodable(text: str) -> str:
    """Escape each invisible character as JSON does, so that results can still be pasted. Line breaks and tabs are kept.

    Surrogate characters are also escaped, because UTF-8 cannot encode them.
    """
    return HIDDEN.sub(lambda match: match[0] if match[0] in "\n\t" else json.dumps(match[0])[1:-1], text)
