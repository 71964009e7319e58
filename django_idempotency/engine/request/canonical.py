"""One form for equal values, and different forms for different values, for any JSON that a client sends.

A value from which no fields can be chosen stays whole, so that it cannot equal another value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import date, time
from hashlib import sha256
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.core.serializers.json import DjangoJSONEncoder

from ..conf import Fingerprint

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


def _uploaded(file: Any) -> dict[str, Any]:
    """A file: its name, its type with parameters such as the charset, and its content. The file is rewound."""
    hasher = sha256()
    file.seek(0)
    for chunk in file.chunks():
        hasher.update(chunk)
    file.seek(0)
    parameters = getattr(file, "content_type_extra", None) or {}
    return {f"{TAG}file": [file.name, file.content_type, parameters, hasher.hexdigest()]}


def _tagged(value: Any) -> dict[str, Any]:
    """Values beside JSON: ours, and those that a framework's parser may produce."""
    if isinstance(value, _Text):
        return {f"{TAG}{type(value).__name__}": value.text}
    if isinstance(value, UploadedFile):
        return _uploaded(value)
    if isinstance(value, bytes):
        return {f"{TAG}bytes": value.hex()}
    if isinstance(value, (date, time)):  # Django's encoder cuts microseconds
        return {f"{TAG}{type(value).__name__}": value.isoformat()}
    return {f"{TAG}{type(value).__name__}": DjangoJSONEncoder().default(value)}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_tagged)


# --- choosing fields

Names = Collection[str]
"""A dot leads into an object. A field whose own name has dots is found too: forms have such names."""
Fields = dict[str, Any]


def selected(value: Any, chosen: Fingerprint) -> Any:
    """The parts of a body that `chosen` compares. An object that has none of the chosen fields counts as a whole."""
    names = chosen.fields
    if names is not None:
        value = _in_objects(value, lambda fields: only(fields, names) or fields)
    return _without(value, chosen.exclude)


def only(value: Any, names: Names) -> Any:
    """The fields with these names."""

    def chosen(fields: Fields) -> Fields:
        found = {}
        for name, item in fields.items():
            if name in names:
                found[name] = item
            elif inner := _below(name, names):
                found[name] = only(item, inner)
        return found

    return _in_objects(value, chosen)


def _without(value: Any, names: Names) -> Any:
    def rest(fields: Fields) -> Fields:
        return {name: _without(item, _below(name, names)) for name, item in fields.items() if name not in names}

    return _in_objects(value, rest) if names else value


def _in_objects(value: Any, select: Callable[[Fields], Fields]) -> Any:
    """Apply `select` to an object, or to each object of a list. Lists in lists stay whole."""
    if isinstance(value, list):
        return [select(item) if _has_fields(item) else item for item in value]
    return select(value) if _has_fields(value) else value


def _has_fields(value: Any) -> bool:
    """Whether this is an object of the client, and not one that stands for a value beside JSON: a file, for example."""
    tagged = isinstance(value, dict) and any(n.startswith(TAG) and not n.startswith(TAG * 2) for n in value)
    return isinstance(value, dict) and not tagged


def _below(name: str, names: Names) -> set[str]:
    """What the names say about the inside of the field `name`: of "meta.sent_at" and "meta" it is "sent_at"."""
    start = f"{name}."
    return {other.removeprefix(start) for other in names if other.startswith(start)}
