"""Bodies of the requests under test: with the key, with every value altered, with files, as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.core.files.base import ContentFile
from django.core.serializers.json import DjangoJSONEncoder


@dataclass(frozen=True, slots=True)
class _File:
    name: str | None
    content_type: str | None
    content: Any

    @classmethod
    def of(cls, file: Any) -> _File:
        file.seek(0)
        return cls(getattr(file, "name", None), getattr(file, "content_type", None), file.read())

    def open(self) -> Any:
        file: Any = ContentFile(self.content, name=self.name)
        if self.content_type is not None:
            file.content_type = self.content_type
        return file


def with_files_read(data: Any) -> Any:
    """Return the data with the content of its files, which a test client reads only once: a retry would be empty."""
    if isinstance(data, dict):
        return {name: with_files_read(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [with_files_read(value) for value in data]
    return _File.of(data) if callable(getattr(data, "read", None)) else data


def with_files_opened(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: with_files_opened(value) for name, value in data.items()}
    if isinstance(data, list):
        return [with_files_opened(value) for value in data]
    return data.open() if isinstance(data, _File) else data


def with_fields(data: Any, fields: Mapping[str, Any] | None) -> Any:
    """Return the body with the fields that carry the key."""
    if fields is None:
        return data
    if not isinstance(data, dict | None):
        raise TypeError(f"with_key= gives body fields, so data must be a dict of fields too, not {data!r}.")
    return {**(data or {}), **fields}


def as_bytes(data: Any) -> bytes:
    """Return the body as a signature needs it: bytes and text as they are, all else as JSON."""
    if data is None:
        return b""
    if isinstance(data, bytes):
        return data
    return (data if isinstance(data, str) else json.dumps(data, cls=DjangoJSONEncoder)).encode()


def altered(data: Any, keep: str | None = None) -> Any:
    """Return the data with every value altered, so that any field that the endpoint compares has changed.

    keep: the key. Texts that contain the key stay as they are.
    """
    if data is None or data in ({}, []):
        return {"altered": "1"}
    match data:
        case dict():
            return {name: altered(value, keep) for name, value in data.items()}
        case list():
            return [altered(value, keep) for value in data]
        case bool():
            return not data
        case int() | float():
            return data + 1
        case _File():
            more = "1" if isinstance(data.content, str) else b"1"
            return replace(data, content=data.content + more)
        case bytes():
            return _altered_text(data.decode("latin-1"), keep).encode("latin-1")
    return _altered_text(str(data), keep)


def _altered_text(text: str, keep: str | None) -> str:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text if keep is not None and keep in text else text + "1"
    return json.dumps(altered(parsed, keep))
