"""Hashes of keys. To find a key in the table, a query compares two numbers instead of long texts."""

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
# The list of characters in `CONTROLS` never changes. The package does not call `str.isprintable`, because its result
# can change with a new Python version. If the result changed, a retry after an upgrade of Python would not find its
# row.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")
"""Control characters, line ends, invisible characters, changes of the writing direction, half surrogate pairs."""


def digest(*parts: bytes | str) -> bytes:
    """Return the SHA-256 hash of all parts. Before each part, the length of this part is hashed.

    So two different lists of parts never give the same bytes to the hash function.
    """
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += len(data).to_bytes(8, "big"), data
    return sha256(b"".join(pieces)).digest()


def key_hash(key: str) -> int:
    """Return a number that depends only on the key. With this number, an operator can find a row if only the key is
    known.
    """
    return identify(scope="", operation="", key=key).key_hash


def reference_of(hash_: int) -> str:
    """Return 16 hex digits that logs show in place of the key, because the key itself can be a secret."""
    return f"{hash_ & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def hash_of(reference: str) -> int:
    """Return the `key_hash` of this reference. `reference_of` makes the reference from the `key_hash`."""
    return int.from_bytes(bytes.fromhex(reference), "big", signed=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity has a caller, an operation and a key. Each request and each row of the key table has an identity. The
    function `identify` makes an identity.

    If a request has no usable key, only the operation is known, and `scope` and `key` are empty texts.

    `key_hash` is the first 8 bytes of SHA-256(key), as a number.
    `scope_hash` is the first 8 bytes of the digest of scope, operation and key, as a number.

    Two rows of the table never have the same pair of `key_hash` and `scope_hash`. `scope_hash` is also the number of
    the key's advisory lock.
    """

    scope: str
    operation: str
    key: str
    key_hash: int
    scope_hash: int

    @property
    def reference(self) -> str:
        """Return the hex digits that logs show in place of the key. The function `reference_of` makes these hex digits.

        If the request has no usable key, the reference is an empty text.
        """
        return reference_of(self.key_hash) if self.key else ""


def has_controls(text: str) -> bool:
    """Return whether the text has a control character, an invisible character, or one half of a surrogate pair."""
    return CONTROLS.search(text) is not None


def kept_scope(scope: str) -> str:
    """Return the scope as the table stores it. A short scope without control characters is stored unchanged.

    Any other scope is stored as a hash. Some projects build the scope from a text that the client has sent. A text from
    a client can contain a NUL, which PostgreSQL refuses. A text from a client can also contain line breaks, or be a
    megabyte long.

    Each stored hash begins with "scope:". If a scope from a client begins with "scope:", this scope is also stored as a
    hash. A person who can read the table could send a stored hash as a scope. If this scope were stored unchanged, this
    person could get the responses of another caller.
    """
    if len(scope) <= MAX_READABLE_SCOPE and CONTROLS.search(scope) is None and not scope.startswith(HASHED_SCOPE):
        return scope
    return f"{HASHED_SCOPE}{sha256(scope.encode(errors='surrogatepass')).hexdigest()}"


def identify(*, scope: str, operation: str, key: str, stored: bool = False) -> Identity:
    """Return the identity of a request or of a row.

    If the scope comes from the table, `stored` is True, and this function does not change the scope. If the scope comes
    from a request, `stored` is False, and `kept_scope` decides whether the scope is hashed.
    """
    scope = scope if stored else kept_scope(scope)
    of_key, of_all = sha256(key.encode()).digest(), digest(scope, operation, key)
    return Identity(scope, operation, key, *unpack(">qq", of_key[:8] + of_all[:8]))


def derived_key(identity: Identity, step: str) -> str:
    """Return a UUID (version 5, RFC 9562) for one external call.

    The UUID of this call is the same in every attempt, in every process and in every release of the package. The UUID
    is `uuid5(DERIVED, text)`. Here `text` has the hex digits of a SHA-256 hash. The hash is made of four parts: scope,
    operation, key and step name. Before each part, the length of this part is hashed as 8 bytes.
    """
    return str(uuid5(DERIVED, digest(identity.scope, identity.operation, identity.key, step).hex()))
