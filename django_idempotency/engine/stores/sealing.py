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
Fernet tells whether a text was changed, not where it was written. Otherwise, a reader with access to the database
could copy a stranger's response into a row of their own, and have it replayed. So what is encrypted begins with a hash
of its place: key, caller and operation (by the two hashes of the row), the column, and the name of the step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from ...exceptions import NotDecryptable
from ..conf import get_settings
from ..protocol.digests import digest, reference_of
from ..protocol.snapshots import Snapshot, encode_headers

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

MARK = "enc1:"
"""What sealed text begins with. Another way of sealing gets another number."""
PLACE_BYTES = 32
"""The length of a hash of a place."""


class Row(Protocol):
    """What knows the identity of a row: a claim, a row that was read, or the model's instance."""

    @property
    def key_hash(self) -> int: ...
    @property
    def scope_hash(self) -> int: ...


class CompletedRow(Row, Protocol):
    """A row as it is stored."""

    @property
    def headers(self) -> str | None: ...
    @property
    def body(self) -> bytes | memoryview | None: ...


def seal(row: Row, column: str, text: str | None, step: str = "") -> str | None:
    """The text as it is stored in this place."""
    if text is None or (cipher := _cipher()) is None:
        return text
    return MARK + cipher.encrypt(_place(row, column, step) + text.encode()).decode()


def unseal(row: Row, column: str, stored: str | None, step: str = "") -> str | None:
    """The text that was stored in this place. Raises `NotDecryptable`."""
    if stored is None or not is_sealed(stored):
        return stored
    return _opened(row, column, stored.removeprefix(MARK).encode(), step).decode()


def is_sealed(stored: str | None) -> bool:
    """Whether this text was encrypted. See Note [What tells sealed text from plain text]."""
    return stored is not None and stored.startswith(MARK)


def seal_response(row: Row, snapshot: Snapshot) -> tuple[str | None, bytes | None]:
    """Headers and body as they are stored in this row."""
    headers, body = encode_headers(snapshot.headers), snapshot.body
    if (cipher := _cipher()) is None:
        return headers, body
    sealed = None if body is None else cipher.encrypt(_place(row, "body") + body)
    return seal(row, "headers", headers), sealed


def unseal_response(row: CompletedRow) -> tuple[str | None, bytes | None]:
    """Headers and body as they were before they were stored in this row. Raises `NotDecryptable`."""
    headers, body = unseal(row, "headers", row.headers), None if row.body is None else bytes(row.body)
    if body is not None and is_sealed(row.headers):
        body = _opened(row, "body", body)
    return headers, body


def _opened(row: Row, column: str, token: bytes, step: str = "") -> bytes:
    what = f"What is stored in {column!r} of idempotency key {reference_of(row.key_hash)}"
    if (cipher := _cipher()) is None:
        raise NotDecryptable(
            f"{what} is encrypted, and IDEMPOTENCY['ENCRYPTION_KEYS'] is not set. Set the list with the key that the "
            "row was written with. Until then the key is refused."
        )
    from cryptography.fernet import InvalidToken

    try:
        opened = cipher.decrypt(token)
    except InvalidToken:
        raise NotDecryptable(
            f"{what} cannot be decrypted by any key of IDEMPOTENCY['ENCRYPTION_KEYS']. Add the key that the row was "
            "written with to the end of the list. Until then the key is refused. If no key is missing, the row was "
            "changed in the database."
        ) from None
    if opened[:PLACE_BYTES] != _place(row, column, step):
        raise NotDecryptable(
            f"{what} was encrypted for another place: the text was copied from another row or column of the database. "
            "The key is refused."
        )
    return opened[PLACE_BYTES:]


def _place(row: Row, column: str, step: str = "") -> bytes:
    """See Note [What sealed text is bound to]."""
    parts = (str(row.key_hash), str(row.scope_hash), column, step)
    return digest(*(part.encode() for part in parts))


def _cipher() -> MultiFernet | None:
    keys = get_settings().encryption_keys
    return None if keys is None else _made_of(keys)


@lru_cache(maxsize=1)
def _made_of(keys: tuple[str, ...]) -> MultiFernet:
    from cryptography.fernet import Fernet, MultiFernet

    return MultiFernet([Fernet(key) for key in keys])
