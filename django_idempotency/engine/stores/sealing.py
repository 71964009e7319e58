"""Encrypts what is stored: responses, step results, errors and decisions. Encrypted text is called sealed text.

Without `ENCRYPTION_KEYS`, nothing is sealed, and the `cryptography` package is not even imported.

# Note [How to recognize sealed text]
Rows stored before encryption was enabled remain unencrypted, and must remain readable. Stored text must therefore
show whether it is sealed, even if a client chose its content.

Outside `body`, sealed text begins with a prefix such as `enc1:`, which says how it is sealed: see `SEALS`. No other
text stored there can begin like this: headers and decisions are JSON lists, a step's result is a JSON object, and an
error text begins with the name of a Python class or a sentence from this package.

A body may begin with `enc1:` without being encrypted, because some views echo what a request contained. A body is
therefore sealed without a prefix. The headers and the body are always written by the same statement: if the headers are
sealed, so is the body.

# Note [Sealed text belongs to one row and one column]
The cipher is AES-256-GCM. The associated data of each ciphertext identifies the place where it is stored, so that it
can be decrypted only there. Otherwise, anyone who can write to the database could copy another user's response into
their own row, and receive it on their next retry.

The place consists of the column's name and the row's two hashes, which depend on the key, the caller and the operation.
For a step, it also includes the step's name. A response is also bound to the status code and the fingerprint of its
row, and can't be decrypted once either has changed. As a result, an error can't be turned into a success, and a
stored response can't be returned for a different payload. In a backend, a response is also bound to its value's random
token.
"""

from __future__ import annotations

import json
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from json.encoder import encode_basestring_ascii as as_json
from typing import TYPE_CHECKING

from ...exceptions import NotDecryptable
from ...models import IdempotencyKey
from ..conf import get_settings
from ..protocol.digests import Identity, digest, reference_of
from ..protocol.outcomes import Claimed, Snapshot
from ..protocol.stored_key import StoredKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED = re.compile(r"enc[0-9]+:")
NONCE_BYTES = 12
"""The length that NIST SP 800-38D recommends for GCM."""


Row = Claimed | Identity | IdempotencyKey
"""Anything that has a row's two hashes: a claim, the identity of a request, or an instance of the model."""
Fact = str | int | bytes | memoryview | None
"""What else sealed text is bound to: the step's name, the response's status code and fingerprint, or the token of a
backend value. Empty facts are left out."""


def seal(row: Row, column: str, text: str | None, *about: Fact) -> str | None:
    """Encrypt text for its row and column. Without encryption keys, return it unchanged."""
    if text is None or not (ciphers := _ciphers()):
        return text
    mark, place_of = _newest()
    return mark + urlsafe_b64encode(_encrypted(ciphers, text.encode(), place_of(row, column, about))).decode()


def unseal(row: Row, column: str, stored: str | None, *about: Fact) -> str | None:
    """Decrypt stored text, or return it unchanged if it is not sealed. Raises `NotDecryptable`."""
    if stored is None or not (mark := _mark_of(stored)):
        return stored
    return _opened(row, column, mark, stored.removeprefix(mark), about).decode()


def unsealed(row: Row, column: str, stored: str | None, *about: Fact, instead: str | None = None) -> str | None:
    """Do the same as `unseal`, but if decrypting fails, return `instead` or, if that is empty, the error's message."""
    try:
        return unseal(row, column, stored, *about)
    except NotDecryptable as error:
        return instead or str(error)


def is_sealed(stored: str | None) -> bool:
    """Whether stored text is encrypted. See Note [How to recognize sealed text]."""
    return stored is not None and SEALED.match(stored) is not None


def _mark_of(stored: str) -> str:
    return "" if (found := SEALED.match(stored)) is None else found[0]


def seal_response(row: Claimed | IdempotencyKey, snapshot: Snapshot, *more: Fact) -> tuple[str | None, bytes | None]:
    """Return a response's headers and body in the form to be stored: sealed, if there are encryption keys."""
    # This is an ASCII string with a JSON list. A list keeps the headers' order, unlike an object in jsonb. A
    # `JSONEncoder` would take three times as long.
    headers = f"[{','.join([f'[{as_json(name)},{as_json(value)}]' for name, value in snapshot.headers])}]"
    body = snapshot.body
    if not (ciphers := _ciphers()):
        return headers, body
    about = (snapshot.status_code, row.fingerprint, *more)
    _, place_of = _newest()
    sealed = None if body is None else _encrypted(ciphers, body, place_of(row, "body", about))
    return seal(row, "headers", headers, *about), sealed


def unseal_response(row: StoredKey | IdempotencyKey, of: Identity | IdempotencyKey, *more: Fact) -> Snapshot:
    """Return a row's stored response. `of` contains the hashes with which the response was sealed.

    Raises `NotDecryptable`.
    """
    if row.status_code is None:
        raise RuntimeError(f"Bug: idempotency key row {row.id} is 'completed' without a result.")
    headers, body = row.headers or "[]", None if row.body is None else bytes(row.body)
    if mark := _mark_of(headers):
        about = (row.status_code, row.fingerprint, *more)
        headers = _opened(of, "headers", mark, headers.removeprefix(mark), about).decode()
        body = None if body is None else _opened(of, "body", mark, body, about)
    return Snapshot(status_code=row.status_code, headers=tuple(map(tuple, json.loads(headers))), body=body)


def _encrypted(ciphers: list[AESGCM], plain: bytes, place: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ciphers[0].encrypt(nonce, plain, place)


def _opened(row: Row, column: str, mark: str, sealed: str | bytes, about: Sequence[Fact]) -> bytes:
    """Decrypt text. This fails if the text was copied from another row or column."""
    what = f"What is stored in {column!r} of idempotency key {reference_of(row.key_hash)}"
    if (place_of := SEALS.get(mark)) is None:
        raise NotDecryptable(
            f"{what} was encrypted by a newer release, as {mark!r}, and this one knows {', '.join(SEALS)} only. "
            "Install the newer release. Until then the idempotency key is refused."
        )
    if not (ciphers := _ciphers()):
        raise NotDecryptable(
            f"{what} is encrypted, and IDEMPOTENCY['ENCRYPTION_KEYS'] is not set. Set it to a list with the "
            "encryption key of this row. Until then the idempotency key is refused."
        )
    from cryptography.exceptions import InvalidTag

    for cipher in ciphers:
        with suppress(InvalidTag, ValueError):  # ValueError: not base64, or too short
            token = sealed if isinstance(sealed, bytes) else urlsafe_b64decode(sealed)
            return cipher.decrypt(token[:NONCE_BYTES], token[NONCE_BYTES:], place_of(row, column, about))
    raise NotDecryptable(
        f"{what} cannot be decrypted by any key in IDEMPOTENCY['ENCRYPTION_KEYS']. Append the one that the row "
        "was written with. Until then the idempotency key is refused. If none is missing, the row was changed in the "
        "database: the text, its place, the status code or the fingerprint."
    )


def _place(row: Row, column: str, about: Sequence[Fact]) -> bytes:
    """Identify a row and a column. See Note [Sealed text belongs to one row and one column]."""
    facts = (bytes(fact).hex() if isinstance(fact, bytes | memoryview) else str(fact) for fact in about if fact)
    return digest(*(part.encode() for part in (str(row.key_hash), str(row.scope_hash), column, *facts)))


SEALS: Mapping[str, Callable[[Row, str, Sequence[Fact]], bytes]] = {"enc1:": _place}
"""The functions that identify the place to which sealed text is bound, by the text's prefix, newest first. A release
seals with the first function, and can unseal text that was sealed with any of them. `RULES` in `protocol/versions.py`
says when a function may be removed."""


def _newest() -> tuple[str, Callable[[Row, str, Sequence[Fact]], bytes]]:
    return next(iter(SEALS.items()))


def _ciphers() -> list[AESGCM] | None:
    keys = get_settings().encryption_keys
    return None if keys is None else _made_of(keys)


@lru_cache(maxsize=1)
def _made_of(keys: tuple[str, ...]) -> list[AESGCM]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return [AESGCM(urlsafe_b64decode(key)) for key in keys]
