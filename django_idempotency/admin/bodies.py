"""Stored bodies and results as text for the pages of the admin. The templates escape the text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.utils.http import parse_header_parameters
from django.utils.translation import gettext

from ..engine.protocol.snapshots import decode_headers
from ..engine.stores.sealing import unseal_response
from ..models import IdempotencyKey

SHOWN = 64 * 1024
"""The longest text on a page: bytes of the stored body, and characters after indentation."""
INDENTED_LEVELS = 20
"""Deeper JSON is shown as it is stored: indentation would make megabytes of a few kilobytes of brackets."""


def readable_body(row: IdempotencyKey) -> str:
    """Return the stored body as text: JSON indented, other text as it is, anything else as its size and type."""
    headers, stored = unseal_response(row)
    body = stored or b""
    content_type = next((v for name, v in decode_headers(headers) if name.lower() == "content-type"), "")
    media_type, parameters = parse_header_parameters(content_type[:1000])  # Django refuses longer ones
    if media_type.endswith("json"):
        return readable_json(body)
    if media_type.startswith("text/") or media_type.endswith(("xml", "urlencoded")):
        return _shortened(_decoded(body, parameters.get("charset", "utf-8")), len(body))
    return encodable(gettext("%(size)d bytes of %(type)s") % {"size": len(body), "type": media_type or "?"})


def readable_json(body: bytes) -> str:
    """Return JSON indented, or as it is stored where it is broken or indentation would change its meaning."""
    return _shortened(_indented(_decoded(body)), len(body))


def _indented(text: str) -> str:
    try:
        value = json.loads(text)
        if _levels(value) > INDENTED_LEVELS:
            return text
        indented = json.dumps(value, indent=2, ensure_ascii=False)
        return indented if _exactly(indented) == _exactly(text) else text
    except (ValueError, RecursionError):
        return text


def _levels(value: Any) -> int:
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, inner), default=0)


def _exactly(text: str) -> Any:
    """Parse with numbers as they are written and every name: 1.10 is not 1.1, and equal names all count."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=tuple)


def _decoded(body: bytes, charset: str = "utf-8") -> str:
    shown = body[:SHOWN]
    try:
        return shown.decode(charset, errors="replace")
    except (LookupError, ValueError):  # unknown, or a codec that is not a character set ("zlib")
        return shown.decode(errors="replace")


def _shortened(text: str, size: int) -> str:
    if size > SHOWN or len(text) > SHOWN:
        text = text[:SHOWN] + "\n" + gettext("… (%(size)d bytes in all)") % {"size": size}
    return encodable(text)


def as_utf8(json_text: str) -> bytes:
    """Return JSON encoded, half surrogate pairs as the escapes that they have in JSON."""
    return json_text.encode(errors="backslashreplace")


def encodable(text: str) -> str:
    """Spell out half surrogate pairs, which no page can encode: "\\ud800" in JSON, or the charset UTF-7, has them."""
    return as_utf8(text).decode()
