"""This module makes the hashes of a key. To find a key, a query looks for two hash numbers, and does not compare long
texts.
"""

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
# The list of characters in `CONTROLS` never changes. The package does not call `str.isprintable`, because a new Python
# version can change the result of `str.isprintable`. After such a change, a retry would not find its row.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")
"""Control characters, line ends, invisible characters, changes of the writing direction, half surrogate pairs."""


def digest(*parts: bytes | str) -> bytes:
    """Return one SHA-256 hash of all parts. The function writes 8 bytes in front of each part. These bytes contain the
    length of the part.

    Without the lengths, the parts ("ab", "c") and the parts ("a", "bc") would have the same hash.
    """
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += len(data).to_bytes(8, "big"), data
    return sha256(b"".join(pieces)).digest()


def key_hash(key: str) -> int:
    """Return a number that depends only on the key. With this number, an operator can find the rows of a key, even if
    the caller is not known.
    """
    return identify(scope="", operation="", key=key).key_hash


def reference_of(hash_: int) -> str:
    """Return 16 hexadecimal digits. Logs show these digits instead of the key, because the key can be a secret."""
    return f"{hash_ & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def hash_of(reference: str) -> int:
    """Convert a reference back into its number. This function is the inverse of `reference_of`."""
    return int.from_bytes(bytes.fromhex(reference), "big", signed=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity consists of a scope, an operation and a key. Each request has an identity, and each row of the key
    table has an identity. The function `identify` makes an identity.

    If a request has no usable key, the scope and the key are empty texts.

    The number `key_hash` consists of the first 8 bytes of the key's SHA-256 hash. The number `scope_hash` is made from
    the first 8 bytes of another hash. The function `digest` makes that hash from the scope, the operation and the key.

    Each row of the key table has a different pair of these two numbers. On PostgreSQL, `scope_hash` is also the number
    of the key's advisory lock.
    """

    scope: str
    operation: str
    key: str
    key_hash: int
    scope_hash: int

    @property
    def reference(self) -> str:
        """Return the hexadecimal digits that logs show instead of the key.

        If the request has no usable key, return an empty text.
        """
        return reference_of(self.key_hash) if self.key else ""


def has_controls(text: str) -> bool:
    """Return whether the text has a control character, an invisible character, or one half of a surrogate pair."""
    return CONTROLS.search(text) is not None


def kept_scope(scope: str) -> str:
    """Return the text that the table stores for this scope. A short scope without control characters is stored
    unchanged.

    Every other scope is stored as a hash. Some projects use a text from the client as the scope. A text from a client
    can be a megabyte long, or can contain line breaks. PostgreSQL also refuses a text with a NUL character.

    Each stored hash has the text "scope:" before its digits. A scope is stored as a hash if the scope is long, or if
    its text begins with "scope:". Otherwise, a person who can read the table could send another caller's hash as a
    scope. Then this person would get the other caller's responses.
    """
    if len(scope) <= MAX_READABLE_SCOPE and CONTROLS.search(scope) is None and not scope.startswith(HASHED_SCOPE):
        return scope
    return f"{HASHED_SCOPE}{sha256(scope.encode(errors='surrogatepass')).hexdigest()}"


def identify(*, scope: str, operation: str, key: str, stored: bool = False) -> Identity:
    """Return the identity of a request or of a row.

    If the scope comes from the table, pass `stored=True`. Then this function does not change the scope. If the scope
    comes from a request, the function `kept_scope` decides whether the scope is hashed.
    """
    scope = scope if stored else kept_scope(scope)
    of_key, of_all = sha256(key.encode()).digest(), digest(scope, operation, key)
    return Identity(scope, operation, key, *unpack(">qq", of_key[:8] + of_all[:8]))


def derived_key(identity: Identity, step: str, namespace: str) -> str:
    """Return a UUID (version 5, RFC 9562) for one external call.

    Every attempt gets the same UUID for the call, in every process and in every release of the package. The function
    `uuid5` makes the UUID from the namespace `DERIVED` and a text. This text consists of the hexadecimal digits of a
    SHA-256 hash. The function `digest` makes the hash from the scope, the operation, the key and the name of the step,
    and from the project's `NAMESPACE` if that is not empty.
    """
    parts = (identity.scope, identity.operation, identity.key, step, *((namespace,) if namespace else ()))
    return str(uuid5(DERIVED, digest(*parts).hex()))
