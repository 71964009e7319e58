"""How a key is found: two fixed-size numbers instead of long text columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID, uuid5

DERIVED = UUID("6f1d7d0e-3c55-4b0c-9a52-6d3a1b0f8e21")
"""The namespace of derived keys. It never changes: a gateway must know tomorrow's retry by today's key."""

MAX_READABLE_SCOPE = 255
"""Characters, as many as a key may have: `forget` and the admin deal with names, not with documents."""
# Listed: what `str.isprintable` says changes with Python's Unicode, and a retry after an upgrade must find its row.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")
"""Control characters, line ends, what is invisible or changes the direction of writing, halves of surrogate pairs."""


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each prefixed by its length, so that no two lists of parts look alike."""
    hasher = sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


def key_hash(key: str) -> int:
    """The first 8 bytes of SHA-256(key): an operator finds a key by its value alone."""
    return _signed(sha256(key.encode()).digest())


def hash_of(reference: str) -> int:
    """The `key_hash` that a reference stands for, see `Identity.reference`."""
    return int.from_bytes(bytes.fromhex(reference), "big", signed=True)


def scope_hash(scope: str, operation: str, key: str) -> int:
    """8 bytes of SHA-256(scope, operation, key): with `key_hash` unique, and the advisory lock's number."""
    return _signed(digest(scope.encode(), operation.encode(), key.encode()))


def _signed(digest_: bytes) -> int:
    return int.from_bytes(digest_[:8], "big", signed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asked for what under which key: one row of the key table. Made by `identify`."""

    scope: str
    operation: str
    key: str
    key_hash: int
    scope_hash: int

    @property
    def reference(self) -> str:
        """16 hex digits that name the key in logs, where the key itself, which may be a secret, does not belong."""
        return f"{self.key_hash & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def kept_scope(scope: str) -> str:
    """The scope as the table keeps it: a short text without control characters, or the hash of anything else.

    The project may have made it of what a client sent: NUL, which PostgreSQL refuses, line breaks, a megabyte.
    """
    if len(scope) <= MAX_READABLE_SCOPE and not _CONTROLS.search(scope):
        return scope
    return f"scope:{sha256(scope.encode(errors='surrogatepass')).hexdigest()}"


def identify(*, scope: str, operation: str, key: str) -> Identity:
    """A long scope, or one with control characters, stands as its hash, see `kept_scope`."""
    scope = kept_scope(scope)
    return Identity(
        scope=scope,
        operation=operation,
        key=key,
        key_hash=key_hash(key),
        scope_hash=scope_hash(scope, operation, key),
    )


def derived_key(identity: Identity, step: str) -> str:
    """A UUID (version 5, RFC 9562) for one external call: the same in every attempt, process and release.

    uuid5(DERIVED, hex of SHA-256 over scope, operation, key and step name, each prefixed by its length in 8 bytes).
    """
    parts = (identity.scope, identity.operation, identity.key, step)
    return str(uuid5(DERIVED, digest(*(part.encode() for part in parts)).hex()))
