"""This module encrypts texts before they are stored: responses, step results, error texts and lists of decisions. A
text that this module has encrypted is called a sealed text.

Without the setting `ENCRYPTION_KEYS`, this module encrypts nothing. This module imports the package `cryptography` only
if encryption keys are set.

# Note [How to recognize a sealed text]
When a project sets `ENCRYPTION_KEYS`, the older rows stay unencrypted, and must stay readable. So this module must
check whether a stored text is encrypted. The check must be correct even if a client has chosen the text.

Sealed text begins with the mark `enc1:`, except in the column `body`. Without encryption, headers and decisions are
JSON lists, and a step result is a JSON object. JSON lists and objects cannot begin with the mark `enc1:`. An
unencrypted error text begins with the name of a Python class, or with a sentence of this package. So an error text that
begins with this mark is always encrypted.

Some views send a text from the request back to the client. So the body of a response can begin with `enc1:` although
the body is not encrypted. So the column `body` does not use the mark. The headers and the body of a response are always
written by the same statement. If the stored text of the headers begins with the mark, the body is encrypted, too.

# Note [Sealed text belongs to one row and one column]
The cipher is AES-256-GCM with associated data. The associated data describes the place of the text, such as its row and
its column. A sealed text can be decrypted only in the row and the column for which it was encrypted. Otherwise, a
person with access to the database could copy another user's response into their own row. The next retry of this person
would get the other user's response.

The associated data consists of the two hashes that are stored in the row, and of the name of the column. The two hashes
depend on the key, the caller and the operation. If the text belongs to a step, the associated data also contains the
name of the step. If the text is a response, the associated data also contains the status code and the fingerprint of
the row. If a person changes the status code or the fingerprint in the row, the response cannot be decrypted. So an
error response cannot become a success, and a stored response cannot become the answer to a different payload. In a
backend, a response is bound to the random token of its value, too.
"""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from ...exceptions import NotDecryptable
from ...models import IdempotencyKey
from ..conf import get_settings
from ..protocol.digests import Identity, digest, reference_of
from ..protocol.outcomes import Claimed, Snapshot
from ..protocol.stored_key import StoredKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MARK = "enc1:"
"""Sealed text begins with this mark. If the way of sealing changes, the number in the mark must change."""
NONCE_BYTES = 12
"""The length that NIST SP 800-38D recommends for GCM."""


HEADERS = json.JSONEncoder(separators=(",", ":"))
"""Writes headers as ASCII JSON. A JSON list keeps the order of the headers, but jsonb does not promise an order."""
Row = Claimed | Identity | IdempotencyKey
"""An object with both hashes of a row: a claim, the identity of a request, or an instance of the model."""
Fact = str | int | bytes | memoryview | None
"""Another fact to which a sealed text is bound: the name of the step, the status code or the fingerprint of the
response, or the token of a value in a backend. An empty fact is left out."""


def seal(row: Row, column: str, text: str | None, *about: Fact) -> str | None:
    """Encrypt the text so that it can be decrypted only in its own row and column. Return the encrypted text. If no
    encryption key is set, return the text unchanged.
    """
    if text is None or not (ciphers := _ciphers()):
        return text
    return MARK + urlsafe_b64encode(_encrypted(ciphers, text.encode(), _place(row, column, about))).decode()


def unseal(row: Row, column: str, stored: str | None, *about: Fact) -> str | None:
    """Decrypt the stored text, and return the result. If the stored text is not sealed, return the text unchanged.

    Raises `NotDecryptable`.
    """
    if stored is None or not is_sealed(stored):
        return stored
    return _opened(row, column, stored.removeprefix(MARK), about).decode()


def is_sealed(stored: str | None) -> bool:
    """Return whether this stored text is encrypted. See Note [How to recognize a sealed text]."""
    return stored is not None and stored.startswith(MARK)


def seal_response(row: Claimed | IdempotencyKey, snapshot: Snapshot, *more: Fact) -> tuple[str | None, bytes | None]:
    """Return the headers and the body of a response, in the form in which the row stores them. If an encryption key is
    set, this function encrypts the headers and the body.
    """
    headers, body = HEADERS.encode(snapshot.headers), snapshot.body
    if not (ciphers := _ciphers()):
        return headers, body
    about = (snapshot.status_code, row.fingerprint, *more)
    sealed = None if body is None else _encrypted(ciphers, body, _place(row, "body", about))
    return seal(row, "headers", headers, *about), sealed


def unseal_response(row: StoredKey | IdempotencyKey, of: Identity | IdempotencyKey, *more: Fact) -> Snapshot:
    """Return the stored response of this row. The function needs two hashes to decrypt a sealed response. The argument
    `of` contains these hashes.

    Raises `NotDecryptable`.
    """
    if row.status_code is None:
        raise RuntimeError(f"Bug: idempotency key row {row.id} is 'completed' without a result.")
    headers, body = row.headers or "[]", None if row.body is None else bytes(row.body)
    if headers.startswith(MARK):
        about = (row.status_code, row.fingerprint, *more)
        headers = _opened(of, "headers", headers.removeprefix(MARK), about).decode()
        body = None if body is None else _opened(of, "body", body, about)
    return Snapshot(status_code=row.status_code, headers=tuple(map(tuple, json.loads(headers))), body=body)


def _encrypted(ciphers: list[AESGCM], plain: bytes, place: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ciphers[0].encrypt(nonce, plain, place)


def _opened(row: Row, column: str, sealed: str | bytes, about: Sequence[Fact]) -> bytes:
    """Return the decrypted text. A text that was copied from another row or column cannot be decrypted."""
    what = f"What is stored in {column!r} of idempotency key {reference_of(row.key_hash)}"
    if not (ciphers := _ciphers()):
        raise NotDecryptable(
            f"{what} is encrypted, and IDEMPOTENCY['ENCRYPTION_KEYS'] is not set. Set the list with the key that the "
            "row was written with. Until then the key is refused."
        )
    from cryptography.exceptions import InvalidTag

    for cipher in ciphers:
        with suppress(InvalidTag, ValueError):  # a ValueError means that the text is not base64, or is too short
            token = sealed if isinstance(sealed, bytes) else urlsafe_b64decode(sealed)
            return cipher.decrypt(token[:NONCE_BYTES], token[NONCE_BYTES:], _place(row, column, about))
    raise NotDecryptable(
        f"{what} cannot be decrypted by any key of IDEMPOTENCY['ENCRYPTION_KEYS']. Add the key that the row was "
        "written with to the end of the list. Until then the key is refused. If no key is missing, the row was changed "
        "in the database: the text, its place, the status code or the fingerprint."
    )


def _place(row: Row, column: str, about: Sequence[Fact]) -> bytes:
    """Return bytes that identify the row and the column in which a text is stored. See Note [Sealed text belongs to one
    row and one column].
    """
    facts = (bytes(fact).hex() if isinstance(fact, bytes | memoryview) else str(fact) for fact in about if fact)
    return digest(*(part.encode() for part in (str(row.key_hash), str(row.scope_hash), column, *facts)))


def _ciphers() -> list[AESGCM] | None:
    keys = get_settings().encryption_keys
    return None if keys is None else _made_of(keys)


@lru_cache(maxsize=1)
def _made_of(keys: tuple[str, ...]) -> list[AESGCM]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return [AESGCM(urlsafe_b64decode(key)) for key in keys]
