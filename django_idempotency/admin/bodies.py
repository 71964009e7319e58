"""Stored text as a person can read it."""

from __future__ import annotations

import json
import re

from django.utils.http import parse_header_parameters
from django.utils.translation import gettext

from ..engine.protocol.snapshots import decode_headers
from ..models import IdempotencyKey

SHOWN_BYTES = 64 * 1024
"""How much of a body the page shows, in bytes of the body and in characters of what is made of it."""
DEEPEST = 20
"""Levels of indentation: beyond it a small, deeply nested body would become a page of megabytes."""


def readable_body(row: IdempotencyKey) -> str:
    """A stored body as text: indented JSON, text as it is, anything else by its size. Not escaped."""
    body = bytes(row.body or b"")
    content_type = next((v for name, v in decode_headers(row.headers) if name.lower() == "content-type"), "")
    media_type, parameters = parse_header_parameters(content_type[:1000])  # Django refuses long ones
    if media_type.endswith("json"):
        text = indented(body) if len(body) <= SHOWN_BYTES else _decoded(body)
    elif media_type.startswith("text/") or media_type.endswith(("xml", "urlencoded")):
        text = _decoded(body, parameters.get("charset", "utf-8"))
    else:
        return gettext("%(size)d bytes of %(type)s") % {"size": len(body), "type": media_type or "?"}
    if len(body) > SHOWN_BYTES or len(text) > SHOWN_BYTES:
        text = text[:SHOWN_BYTES] + "\n" + gettext("… (%(size)d bytes in all)") % {"size": len(body)}
    return text


def _decoded(body: bytes, charset: str = "utf-8") -> str:
    shown = body[:SHOWN_BYTES]
    try:
        return shown.decode(charset, errors="replace")
    except (LookupError, ValueError):  # unknown, or no character set at all ("zlib")
        return shown.decode(errors="replace")


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"\s]+')
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")


def indented(body: bytes) -> str:
    """Indent JSON token by token: numbers, repeated names and their order stay as the client got them.

    To parse it and write it again would show an amount of 1.10 as 1.1, and the last of two equal names only.
    """
    text = _decoded(body)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    parts: list[str] = []
    depth, previous = 0, ""
    for piece in _JSON_TOKEN.findall(text):
        depth += (previous in _OPENING) - (piece in _CLOSING)
        if previous == "," or (previous in _OPENING) != (piece in _CLOSING):
            parts.append("\n" + "  " * min(depth, DEEPEST))
        parts.append(_readable(piece) + (" " if piece == ":" else ""))
        previous = piece
    return "".join(parts)


def _readable(piece: str) -> str:
    """A string with its escaped letters spelt out, unless they are halves of a pair, which no page can encode."""
    if "\\u" not in piece:
        return piece
    spelt = json.dumps(json.loads(piece), ensure_ascii=False)
    return piece if any("\ud800" <= letter <= "\udfff" for letter in spelt) else spelt
