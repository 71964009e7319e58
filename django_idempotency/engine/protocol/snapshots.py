"""A stored response: enough to send the same bytes again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

Headers = tuple[tuple[str, str], ...]
_ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Status, headers and body of a final response. Without a body it is a tombstone: done, and never run again.

    Its `repr` shows no headers and no body: both may hold what only the client may see, and errors are logged.
    """

    status_code: int
    headers: Headers = field(repr=False)
    body: bytes | None = field(repr=False)

    @property
    def is_tombstone(self) -> bool:
        return self.body is None

    def header(self, name: str) -> str | None:
        """The first header of that name (case-insensitive), if there is one."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


def encode_headers(headers: Headers) -> str:
    """The headers as ASCII JSON. A list keeps their order, which jsonb would not promise."""
    return _ENCODER.encode(headers)


def decode_headers(text: str | None) -> Headers:
    return tuple(map(tuple, json.loads(text or "[]")))
