"""What happens to a request whose key is already stored?

A store reads the row and calls `decide`. If the last attempt failed or was abandoned, it also calls `resumed`.

# Note [A committed claim without a lease]
In atomic mode, one COMMIT stores a claim together with its result, so a committed row is normally no longer
IN_PROGRESS. But if the work commits its own transaction and is then interrupted, the row stays IN_PROGRESS. A raw
COMMIT, DDL on MariaDB, and `executescript` on SQLite all commit the transaction. Everything that the work wrote before
that COMMIT stays in the database, so a retry must not run the work again. The outcome of each retry is `InDoubt`, and a
person has to look at the data. If it were `Conflicted`, the client would retry forever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from . import outcomes
from .digests import Identity
from .outcomes import ClaimRequest, Resource, Snapshot


class Status(StrEnum):
    """The values of the key table's `status`; `IdempotencyKey.Status` adds human-readable labels."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """The content of one row of the key table.

    Attributes:
        expired: whether the key counts as new. A key in progress or in doubt never expires.
        lapsed: whether the row's lease has expired.
        unleased: whether the row is in progress without a lease. See Note [A committed claim without a lease].
        lease_left: seconds until the lease expires; 0 or negative once it has expired, or if there is none.
        response: decrypts the stored response; called only for a replay.
    """

    id: int
    scope: str
    operation: str
    key: str
    fingerprint: bytes | None
    status: Status
    attempt: int
    expired: bool
    lapsed: bool
    unleased: bool
    lease_left: float
    status_code: int | None
    headers: str | None = field(repr=False)
    body: bytes | None = field(repr=False)
    resource: Resource | None = None
    response: Callable[[StoredKey, Identity], Snapshot]


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The row has expired: the key counts as new, and the request claims the row."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The last attempt failed or was abandoned: the store locks the row and calls `resumed` with the steps in doubt."""


Ruling = TakeOver | Resume | outcomes.Known


def decide(stored: StoredKey, request: ClaimRequest) -> Ruling:
    """Decide what happens to a request whose key is already stored. The first matching rule wins."""
    of = request.identity
    if (stored.scope, stored.operation, stored.key) != (of.scope, of.operation, of.key):
        # The hashes match, but the caller, operation or key does not. The refusal must reveal nothing about this row.
        return outcomes.Mismatched()
    if stored.expired:
        # If `late` is set, the key contains its creation time. If such a key has an expired row, its work is known to
        # have run. The creation time alone might not show that, because `ttl` may have been raised since.
        return outcomes.TooOld() if request.known_only or request.late is not None else TakeOver()
    if stored.status is Status.IN_PROGRESS and not (stored.lapsed or stored.unleased):
        return outcomes.Conflicted(lease_left=stored.lease_left, resource=stored.resource)
    if None not in (stored.fingerprint, request.fingerprint) and stored.fingerprint not in (
        request.fingerprint,
        *request.earlier,
    ):
        return outcomes.Mismatched(resource=stored.resource, refused=(stored.status_code or 0) >= 400)
    if stored.status is Status.COMPLETED:
        return outcomes.Completed(snapshot=stored.response(stored, of), resource=stored.resource)
    return outcomes.InDoubt(attempt=stored.attempt, resource=stored.resource) if stored.unleased else Resume()


class Doubt(NamedTuple):
    """A step that was started but has no result.

    Attributes:
        recognizable: whether the called service would recognize another start of the call. It does if each earlier
            start carried the derived key, and the first start is so recent that the service still remembers the key.
    """

    name: str
    is_call: bool
    recognizable: bool


def resumed(stored: StoredKey, request: ClaimRequest, doubts: Sequence[Doubt]) -> outcomes.Claimed | outcomes.InDoubt:
    """Return the outcome for a key whose last attempt failed or was abandoned. The store has locked its row.

    A write in doubt is never repeated, because that would write twice. A call in doubt is repeated if `on_abandoned`
    allows it. If a call must not be repeated, the whole key stays in doubt, unless the project's `reconcile` is
    called first.
    """
    held = [doubt for doubt in doubts if not (doubt.is_call and (request.reconciles or _may_repeat(doubt, request)))]
    if held:
        # `InDoubt` does not change the attempt number, so a previous worker that is still alive can store the result of
        # its call.
        unkeyed = tuple(doubt.name for doubt in held if doubt.is_call and request.policy == "retry-keyed")
        return outcomes.InDoubt(attempt=stored.attempt, resource=stored.resource, unkeyed=unkeyed)
    return outcomes.Claimed(
        id=stored.id,
        attempt=stored.attempt + 1,
        key_hash=request.identity.key_hash,
        scope_hash=request.identity.scope_hash,
        abandoned=stored.status is Status.IN_PROGRESS,
        in_doubt=tuple(doubt.name for doubt in doubts),
        resource=stored.resource,
        fingerprint=stored.fingerprint,
    )


def _may_repeat(doubt: Doubt, request: ClaimRequest) -> bool:
    return request.policy == "retry" or (request.policy == "retry-keyed" and doubt.recognizable)
