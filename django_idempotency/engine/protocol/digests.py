"""How a key is found: by two numbers of fixed size, not by long texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from struct import unpack
from uuid import UUID, uuid5

DERIVED = UUID("6f1d7d0e-3c55-4b0c-9a52-6d3a1b0f8e21")
"""The namespace of derived keys. It never changes: a gateway must recognize a retry after the next release."""

MAX_READABLE_SCOPE = 255
"""Characters, as many as a key may have. Longer scopes are stored as their hash."""
HASHED_SCOPE = "scope:"
"""Begins the scopes that are hashes, and no other scope."""
# A fixed list: `str.isprintable` changes with Python's Unicode, and a retry after an upgrade must find its row.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")
"""Control characters, line ends, invisible characters, changes of the writing direction, half surrogate pairs."""


def digest(*parts: bytes | str) -> bytes:
    """SHA-256 of the parts, each prefixed by its length, so that two lists of parts never hash the same text."""
    hasher = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.digest()


def key_hash(key: str) -> int:
    """The first number of each identity with this key: an operator finds the key by its value alone."""
    return identify(scope="", operation="", key=key).key_hash


def reference_of(hash_: int) -> str:
    """16 hex digits that name a key in logs. The key itself may be a secret."""
    return f"{hash_ & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def hash_of(reference: str) -> int:
    """The `key_hash` of a reference, see `reference_of`."""
    return int.from_bytes(bytes.fromhex(reference), "big", signed=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller, the operation and the key of one row of the key table. Made by `identify`.

    Of a request without a usable key only the operation is known. The other texts are empty.

    key_hash: the first 8 bytes of SHA-256(key).
    scope_hash: the first 8 bytes of the digest of scope, operation and key. Unique together with `key_hash`. It is also
        the number of the advisory lock.
    """

    scope: str
    operation: str
    key: str
    key_hash: int
    scope_hash: int

    @property
    def reference(self) -> str:
        """The name of the key in logs, see `reference_of`. Empty: the request has no usable key."""
        return reference_of(self.key_hash) if self.key else ""


def has_controls(text: str) -> bool:
    """Whether the text has control or invisible characters, or half a surrogate pair."""
    return CONTROLS.search(text) is not None


def kept_scope(scope: str) -> str:
    """The scope as the table stores it: a short text without control characters, or the hash of any other text.

    A project may build the scope from what a client sent: NUL, which PostgreSQL refuses, line breaks, a megabyte. Or a
    text that begins as such a hash does: a reader of the table must not be able to send a hash of it as a scope.
    """
    if len(scope) <= MAX_READABLE_SCOPE and CONTROLS.search(scope) is None and not scope.startswith(HASHED_SCOPE):
        return scope
    return f"{HASHED_SCOPE}{sha256(scope.encode(errors='surrogatepass')).hexdigest()}"


def identify(*, scope: str, operation: str, key: str, stored: bool = False) -> Identity:
    """Make the identity of a request, or that of a row.

    stored: the scope comes from the table, and is taken as it is. The scope of a request may be replaced by its hash:
        see `kept_scope`.
    """
    scope = scope if stored else kept_scope(scope)
    of_key, of_all = sha256(key.encode()).digest(), digest(scope, operation, key)
    return Identity(scope, operation, key, *unpack(">qq", of_key[:8] + of_all[:8]))


def derived_key(identity: Identity, step: str) -> str:
    """A UUID (version 5, RFC 9562) for one external call: the same in every attempt, process and release.

    uuid5(DERIVED, hex of SHA-256 over scope, operation, key and step name, each prefixed by its length in 8 bytes).
    """
    return str(uuid5(DERIVED, digest(identity.scope, identity.operation, identity.key, step).hex()))
