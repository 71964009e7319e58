"""One form for equal values, and different forms for different values, for any JSON that a client sends."""

from __future__ import annotations

import json
from datetime import date, time
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.core.serializers.json import DjangoJSONEncoder

from ..protocol.digests import digest_of_chunks

TAG = "\0"
"""Begins the only name of an object that stands for a value which is not JSON. Names of clients are escaped with it."""

MAX_BITS = 2000
"""Longer numbers are written in another way, because Python may refuse to write them with decimal digits."""


class _Text:
    """A text that must not equal the same text in a client's JSON."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Number(_Text):
    """A number with a fraction, as it was written. As floats, two different amounts could become equal."""


class Digest(_Text):
    """The digest of a body that is not parsed."""


def canonical(value: Any) -> bytes:
    """The value in one form: the order of keys and white space make no difference.

    Raises:
        TypeError: for an object that neither JSON nor Django can write.
    """
    return _ENCODER.encode(value).encode()


def escaped(name: str) -> str:
    """The name of a field in a client's JSON: never a name that `canonical` gives to what is not JSON."""
    return TAG + name if name.startswith(TAG) else name


def plain(value: Any) -> Any:
    """A value of a framework's parser as JSON, in which different values stay different.

    Parsers of YAML, MessagePack and the like produce names that are no text, and types that JSON lacks.

    Raises:
        TypeError: for an object that neither JSON nor Django can write.
        RecursionError: for a value that is nested too deeply.
    """
    if _is_long(value):
        return {f"{TAG}int": hex(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain_name(name): plain(item) for name, item in value.items()}
    return _tagged(value)


def is_heavier(value: Any, limit: int) -> bool:
    """Whether a parser's value has more characters and items than this, each counted wherever it occurs.

    Aliases of YAML share what they name, so a few bytes can stand for millions. `plain` would write out each of them.
    """
    waiting = [value]
    while waiting and limit >= 0:
        item = waiting.pop()
        limit -= 1 + (len(item) if isinstance(item, (str, bytes, list, tuple, dict)) else 0)
        if limit >= 0 and isinstance(item, dict):
            waiting += item
            waiting += item.values()
        elif limit >= 0 and isinstance(item, (list, tuple)):
            waiting += item
    return limit < 0


def _plain_name(name: Any) -> str:
    if isinstance(name, str):
        return escaped(name)
    return f"{TAG}{type(name).__name__}:{hex(name) if _is_long(name) else repr(name)}"


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > MAX_BITS


def is_tagged(value: dict[str, Any]) -> bool:
    """Whether an object stands for a value that is not JSON: a file, for example."""
    return any(name.startswith(TAG) and not name.startswith(TAG * 2) for name in value)


def described_file(name: str | None, content_type: str | None, parameters: Any, digest: str) -> dict[str, Any]:
    """An uploaded file. `parameters` are those of its content type: its charset, for example."""
    return {f"{TAG}file": [name, content_type, parameters or {}, digest]}


def uploaded(file: Any) -> dict[str, Any]:
    """A file that a parser has read already. The file is rewound."""
    file.seek(0)
    hexdigest = digest_of_chunks(file.chunks())
    file.seek(0)
    return described_file(file.name, file.content_type, getattr(file, "content_type_extra", None), hexdigest)


def _tagged(value: Any) -> dict[str, Any]:
    """Values beside JSON: ours, and those that a framework's parser may produce."""
    if isinstance(value, _Text):
        return {f"{TAG}{type(value).__name__}": value.text}
    if isinstance(value, UploadedFile):
        return uploaded(value)
    if isinstance(value, bytes):
        return {f"{TAG}bytes": value.hex()}
    if isinstance(value, (date, time)):  # Django's encoder cuts microseconds
        return {f"{TAG}{type(value).__name__}": value.isoformat()}
    return {f"{TAG}{type(value).__name__}": DjangoJSONEncoder().default(value)}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_tagged)
