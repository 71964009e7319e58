"""How is a key hashed? A query looks for two numbers instead of comparing long strings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from struct import unpack
from uuid import UUID, uuid5

DERIVED = UUID("6f1d7d0e-3c55-4b0c-9a52-6d3a1b0f8e21")
"""The namespace of derived keys. It never changes, so that a gateway recognizes a retry after an upgrade."""

MAX_READABLE_SCOPE = 255
"""The longest scope, in characters, that is stored unchanged. A longer one is stored as its hash."""
HASHED_SCOPE = "scope:"
"""The prefix of every scope stored as a hash, and of no other scope."""
STORED_HASH = re.compile(rf"{HASHED_SCOPE}[0-9a-f]{{64}}")
# This list is fixed, because the result of `str.isprintable` may change between Python versions. A retry would then
# fail to find its row. The list contains control characters, line breaks, invisible characters, characters that change
# the text direction, and lone surrogates.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")


def digest(*parts: bytes | str) -> bytes:
    """Return the SHA-256 hash of all parts, each preceded by its length in 8 bytes.

    Without the lengths, ("ab", "c") and ("a", "bc") would have the same hash.
    """
    hashed = b""
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed += len(data).to_bytes(8, "big") + data
    return sha256(hashed).digest()


def key_hash(key: str) -> int:
    """Return the hash of the key alone, so that an operator can find its rows without knowing the caller."""
    return identify(scope="", operation="", key=key).key_hash


def reference_of(hash_: int) -> str:
    """Return the 16 hexadecimal digits that logs show instead of the key, which can be a secret."""
    return f"{hash_ & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def hash_of(reference: str) -> int:
    """Return the hash that `reference_of` turned into this reference."""
    return int.from_bytes(bytes.fromhex(reference), "big", signed=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """The scope, operation and key that identify a request or a row. Made by `identify`.

    The scope and key are empty if a request carries no usable key.

    `key_hash` is the first 8 bytes of the key's SHA-256 hash, and `scope_hash` is the first 8 bytes of the `digest` of
    the scope, operation and key. No two rows in the key table share both hashes. On PostgreSQL, `scope_hash` also
    serves as the key's advisory lock number.
    """

    scope: str
    operation: str
    key: str
    key_hash: int
    scope_hash: int

    @property
    def reference(self) -> str:
        """The text that logs show instead of the key. It is empty if the request carries no usable key."""
        return reference_of(self.key_hash) if self.key else ""


def has_controls(text: str) -> bool:
    return CONTROLS.search(text) is not None


def stored_scope(scope: str) -> str:
    """Return the scope as the table stores it: unchanged if it is short and printable, otherwise as "scope:" and a
    hash.

    Projects may take a scope from the client, and a client's string can be a megabyte long or contain line breaks;
    PostgreSQL rejects NUL altogether. A scope that begins with "scope:" is also hashed, since anyone who can read the
    table could otherwise send another caller's hash as a scope and receive that caller's responses.
    """
    if len(scope) <= MAX_READABLE_SCOPE and CONTROLS.search(scope) is None and not scope.startswith(HASHED_SCOPE):
        return scope
    return f"{HASHED_SCOPE}{sha256(scope.encode(errors='surrogatepass')).hexdigest()}"


def identify(*, scope: str, operation: str, key: str, stored: bool = False) -> Identity:
    """Return the identity of a request or, with `stored=True`, of a row. A row's scope is used unchanged."""
    scope = scope if stored else stored_scope(scope)
    of_key, of_all = sha256(key.encode()).digest(), digest(scope, operation, key)
    return Identity(scope, operation, key, *unpack(">qq", of_key[:8] + of_all[:8]))


def identify_given(*, scope: str, operation: str, key: str) -> Identity:
    """Return the identity for a scope that an operator has entered.

    Operators may enter the text that a row shows, or the text that the endpoint's `scope=` returns.

    Never use this function for a scope that a client may have chosen: see `stored_scope`.
    """
    return identify(scope=scope, operation=operation, key=key, stored=STORED_HASH.fullmatch(scope) is not None)


def derived_key(identity: Identity, step: str, namespace: str) -> str:
    """Return an external call's UUID (version 5, RFC 9562), which is the same in every attempt, process and release.

    It is created in the `DERIVED` namespace from a `digest` that covers the scope, operation, key and step, plus the
    project's `NAMESPACE` if one is set.
    """
    parts = (identity.scope, identity.operation, identity.key, step, *((namespace,) if namespace else ()))
    return str(uuid5(DERIVED, digest(*parts).hex()))
