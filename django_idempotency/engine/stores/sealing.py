"""Encryption at rest: what a response, a step or an error says, sealed for the row that holds it.

Without `ENCRYPTION_KEYS`, everything is stored as it is, and nothing of this module costs more than a look at the
setting. `cryptography` is imported with the first key.

# Note [What tells sealed text from plain text]
Rows that were written before the setting stay plain, and must be read. What a client can shape must never decide
which rows are plain. Sealed text begins with a mark. Plain headers are a JSON list, and plain results are a JSON
object, so neither can begin with the mark. A plain body can: a view may echo a request. So the body has no mark of its
own. Headers and body of a response are written by one statement, and the mark of the headers stands for both. Plain
errors begin with the name of a class, and are only shown.

# Note [What sealed text is bound to]
AES-256-GCM with associated data: what is sealed opens in its own place only. Otherwise, a reader with access to the
database could copy a stranger's response into a row of their own, and have it replayed. The place is the key, caller
and operation (by the two hashes of the row), the column, and the name of the step. To a response belong the status
code and the fingerprint of the row, too: a refusal cannot be made a success, nor an answer that of another payload.
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
from ..protocol.decision import StoredKey
from ..protocol.digests import Identity, digest, reference_of
from ..protocol.outcomes import Claimed, Snapshot

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MARK = "enc1:"
"""What sealed text begins with. Another way of sealing gets another number."""
NONCE_BYTES = 12
"""What NIST SP 800-38D recommends for GCM."""


HEADERS = json.JSONEncoder(separators=(",", ":"))
"""Writes headers as ASCII JSON. A list keeps their order, which jsonb would not promise."""
Row = Claimed | Identity | IdempotencyKey
"""What knows both hashes of a row: a claim, the identity of a request, or the model's instance."""
Fact = str | int | bytes | memoryview | None
"""What else a sealed text is bound to: the name of its step; the status code and the fingerprint of its response. What
is empty counts as nothing."""


def seal(row: Row, column: str, text: str | None, *about: Fact) -> str | None:
    """The text as it is stored in this place."""
    if text is None or not (ciphers := _ciphers()):
        return text
    return MARK + urlsafe_b64encode(_encrypted(ciphers, text.encode(), _place(row, column, about))).decode()


def unseal(row: Row, column: str, stored: str | None, *about: Fact) -> str | None:
    """The text that was stored in this place. Raises `NotDecryptable`."""
    if stored is None or not is_sealed(stored):
        return stored
    return _opened(row, column, stored.removeprefix(MARK), about).decode()


def is_sealed(stored: str | None) -> bool:
    """Whether this text was encrypted. See Note [What tells sealed text from plain text]."""
    return stored is not None and stored.startswith(MARK)


def seal_response(row: Claimed | IdempotencyKey, snapshot: Snapshot) -> tuple[str | None, bytes | None]:
    """Headers and body as they are stored in this row."""
    headers, body = HEADERS.encode(snapshot.headers), snapshot.body
    if not (ciphers := _ciphers()):
        return headers, body
    about = (snapshot.status_code, row.fingerprint)
    sealed = None if body is None else _encrypted(ciphers, body, _place(row, "body", about))
    return seal(row, "headers", headers, *about), sealed


def unseal_response(row: StoredKey | IdempotencyKey, of: Identity | IdempotencyKey) -> Snapshot:
    """The response that was stored in this row, of this identity. Raises `NotDecryptable`."""
    if row.status_code is None:
        raise RuntimeError(f"Bug: idempotency key row {row.id} is 'completed' without a result.")
    headers, body = row.headers or "[]", None if row.body is None else bytes(row.body)
    if headers.startswith(MARK):
        about = (row.status_code, row.fingerprint)
        headers = _opened(of, "headers", headers.removeprefix(MARK), about).decode()
        body = None if body is None else _opened(of, "body", body, about)
    return Snapshot(status_code=row.status_code, headers=tuple(map(tuple, json.loads(headers))), body=body)


def _encrypted(ciphers: list[AESGCM], plain: bytes, place: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ciphers[0].encrypt(nonce, plain, place)


def _opened(row: Row, column: str, sealed: str | bytes, about: Sequence[Fact]) -> bytes:
    """What was sealed. No plain text has a name here: what is in a wrong place is never decrypted."""
    what = f"What is stored in {column!r} of idempotency key {reference_of(row.key_hash)}"
    if not (ciphers := _ciphers()):
        raise NotDecryptable(
            f"{what} is encrypted, and IDEMPOTENCY['ENCRYPTION_KEYS'] is not set. Set the list with the key that the "
            "row was written with. Until then the key is refused."
        )
    from cryptography.exceptions import InvalidTag

    for cipher in ciphers:
        with suppress(InvalidTag, ValueError):  # ValueError: no base64, or too short
            token = sealed if isinstance(sealed, bytes) else urlsafe_b64decode(sealed)
            return cipher.decrypt(token[:NONCE_BYTES], token[NONCE_BYTES:], _place(row, column, about))
    raise NotDecryptable(
        f"{what} cannot be decrypted by any key of IDEMPOTENCY['ENCRYPTION_KEYS']. Add the key that the row was "
        "written with to the end of the list. Until then the key is refused. If no key is missing, the row was changed "
        "in the database: the text, its place, the status code or the fingerprint."
    )


def _place(row: Row, column: str, about: Sequence[Fact]) -> bytes:
    """See Note [What sealed text is bound to]."""
    facts = (bytes(fact).hex() if isinstance(fact, bytes | memoryview) else str(fact) for fact in about if fact)
    return digest(*(part.encode() for part in (str(row.key_hash), str(row.scope_hash), column, *facts)))


def _ciphers() -> list[AESGCM] | None:
    keys = get_settings().encryption_keys
    return None if keys is None else _made_of(keys)


@lru_cache(maxsize=1)
def _made_of(keys: tuple[str, ...]) -> list[AESGCM]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return [AESGCM(urlsafe_b64decode(key)) for key in keys]
