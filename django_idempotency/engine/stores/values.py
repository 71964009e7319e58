"""The value that a backend stores under a name: a claim or a result.

A value consists of a format number, the random token of the attempt that wrote it, and the content in that format: see
`FORMATS`. No two attempts write the same value, so the value that `swap` returns shows who holds the key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..protocol.digests import Identity, reference_of
from ..protocol.outcomes import Claimed, ClaimRequest, Resource, Snapshot
from ..protocol.stored_key import Status, StoredKey
from .sealing import seal_response, unseal_response

NAMES = "1"
"""The prefix of names. It never changes: a release that looked for other names would run the work of retries again."""
TOKEN = slice(1, 33)
"""The position of the token in a value of any format: the 32 hexadecimal digits after the format's number."""


def name_of(identity: Identity) -> str:
    return f"{NAMES}:{reference_of(identity.key_hash)}:{reference_of(identity.scope_hash)}"


def claim_value(token: str, request: ClaimRequest, resource: Resource | None = None) -> bytes:
    # The backend's clock determines when the claim ends; this time only tells duplicates when to come back.
    return _value(token, request, resource, {"until": time.time() + (request.lease or 0)})


def result_value(
    token: str, request: ClaimRequest, resource: Resource | None, snapshot: Snapshot, longest: int | None
) -> bytes:
    """Return the value that holds the response, or a tombstone if the value would be longer than `longest` bytes."""
    of = request.identity
    row = Claimed(id=0, attempt=1, key_hash=of.key_hash, scope_hash=of.scope_hash, fingerprint=request.fingerprint)
    headers, body = seal_response(row, snapshot, token)
    about = {"status_code": snapshot.status_code, "headers": headers, "has_body": body is not None}
    value = _value(token, request, resource, about, body or b"")
    if longest is None or len(value) <= longest or snapshot.body is None:
        return value
    return result_value(token, request, resource, snapshot.without_body(), longest)


def _value(
    token: str, request: ClaimRequest, resource: Resource | None, about: Mapping[str, object], body: bytes = b""
) -> bytes:
    of, fingerprint = request.identity, request.fingerprint
    told = {
        "scope": of.scope,
        "operation": of.operation,
        "key": of.key,
        "fingerprint": None if fingerprint is None else fingerprint.hex(),
        "resource": resource,
        **about,
    }
    number, newest = next(iter(FORMATS.items()))
    return b"".join((number.encode(), token.encode(), newest.join(told, body)))


def is_of(value: bytes, token: str) -> bool:
    return value[TOKEN] == token.encode()


def read_value(value: bytes) -> StoredKey:
    """Return the `StoredKey` that `decide` needs. Raises `ValueError` for a value this package did not write."""
    if (known := FORMATS.get(value[: TOKEN.start].decode(errors="replace"))) is None:
        raise ValueError(f"the value begins with {value[:40]!r}, a format that this release cannot read")
    (told, body), token = known.split(value[TOKEN.stop :]), value[TOKEN].decode()
    completed = "status_code" in told
    return StoredKey(
        id=0,
        scope=told["scope"],
        operation=told["operation"],
        key=told["key"],
        fingerprint=None if told["fingerprint"] is None else bytes.fromhex(told["fingerprint"]),
        status=Status.COMPLETED if completed else Status.IN_PROGRESS,
        attempt=1,
        expired=False,  # the backend does not return expired values
        lapsed=False,
        unleased=False,
        lease_left=told.get("until", 0) - time.time(),
        status_code=told.get("status_code"),
        headers=told.get("headers"),
        body=body if told.get("has_body") else None,
        resource=None if told["resource"] is None else tuple(told["resource"]),
        response=lambda stored, of: unseal_response(stored, of, token),
    )


def _joined(told: Mapping[str, object], body: bytes) -> bytes:
    """A line of JSON, then the body."""
    return json.dumps(told).encode() + b"\n" + body


def _split(text: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, body = text.partition(b"\n")
    return json.loads(line), body


class Format(NamedTuple):
    join: Callable[[Mapping[str, object], bytes], bytes]
    split: Callable[[bytes], tuple[dict[str, Any], bytes]]


FORMATS: Mapping[str, Format] = {"1": Format(_joined, _split)}
"""The functions that write and read a value, by the number of its format, newest first. A release writes the first
format, and reads all of them. `RULES` in `protocol/versions.py` says when a format may be removed."""
