"""Hashes: a key is found in the table by two numbers of fixed size, not by long texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from struct import unpack
from uuid import UUID, uuid5

DERIVED = UUID("6f1d7d0e-3c55-4b0c-9a52-6d3a1b0f8e21")
"""The namespace of derived keys. The namespace never changes, so that a gateway recognizes a retry after an upgrade."""

MAX_READABLE_SCOPE = 255
"""The most characters of a scope, equal to the limit of a key. A longer scope is stored as its hash."""
HASHED_SCOPE = "scope:"
"""Each scope that is stored as a hash begins with this text. No other stored scope begins with it."""
# The list of characters is fixed, because the result of `str.isprintable` can change with a new Python version. Then a
# retry after an upgrade would not find its row.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")
"""Control characters, line ends, invisible characters, changes of the writing direction, half surrogate pairs."""


def digest(*parts: bytes | str) -> bytes:
    """SHA-256 of the parts, each with its length before it. So two different lists of parts never give equal bytes."""
    hasher = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.digest()


def key_hash(key: str) -> int:
    """A number that depends on the key only. With this number, an operator can find a key without its scope."""
    return identify(scope="", operation="", key=key).key_hash


def reference_of(hash_: int) -> str:
    """16 hex digits that stand for a key in logs, because the key itself can be a secret."""
    return f"{hash_ & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def hash_of(reference: str) -> int:
    """The `key_hash` of a reference, see `reference_of`."""
    return int.from_bytes(bytes.fromhex(reference), "big", signed=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller, the operation and the key of one row of the key table. Made by `identify`.

    If a request has no usable key, only the operation is known, and the other texts are empty.

    key_hash: the first 8 bytes of SHA-256(key).
    scope_hash: the first 8 bytes of the digest of scope, operation and key. The pair of `key_hash` and `scope_hash` is
        unique. `scope_hash` is also the number of the advisory lock.
    """

    scope: str
    operation: str
    key: str
    key_hash: int
    scope_hash: int

    @property
    def reference(self) -> str:
        """The hex digits that stand for the key in logs, see `reference_of`.

        They are empty if the request has no usable key.
        """
        return reference_of(self.key_hash) if self.key else ""


def has_controls(text: str) -> bool:
    """Whether the text has a control character, an invisible character, or a single surrogate (half of a pair)."""
    return CONTROLS.search(text) is not None


def kept_scope(scope: str) -> str:
    """The scope that the table stores. A short text without control characters is unchanged, other texts are hashed.

    Some projects build the scope from text of a client. For example, this text can have a NUL, which PostgreSQL
    refuses, or line breaks, or a megabyte. A text that begins with "scope:" is hashed too. Otherwise, a person who has
    read a stored hash in the table could send that hash as a scope, and would be treated as the other caller.
    """
    if len(scope) <= MAX_READABLE_SCOPE and CONTROLS.search(scope) is None and not scope.startswith(HASHED_SCOPE):
        return scope
    return f"{HASHED_SCOPE}{sha256(scope.encode(errors='surrogatepass')).hexdigest()}"


def identify(*, scope: str, operation: str, key: str, stored: bool = False) -> Identity:
    """Make the identity of a request or of a row.

    stored: True if the scope comes from the table and must not be changed. False if the scope comes from a request, and
        `kept_scope` decides whether to hash it.
    """
    scope = scope if stored else kept_scope(scope)
    of_key, of_all = sha256(key.encode()).digest(), digest(scope, operation, key)
    return Identity(scope, operation, key, *unpack(">qq", of_key[:8] + of_all[:8]))


def derived_key(identity: Identity, step: str) -> str:
    """A UUID (version 5, RFC 9562) for one external call. The UUID is the same in every attempt, process and release.

    The UUID is `uuid5(DERIVED, text)`. The text is the hexadecimal SHA-256 of scope, operation, key and step name, each
    with its length in 8 bytes before it.
    """
    return str(uuid5(DERIVED, digest(identity.scope, identity.operation, identity.key, step).hex()))
