"""The decision table. It tells how to answer a request whose key is stored already.

A store reads the row, calls these functions, and executes their decision.

# Note [A committed claim without a lease]
In atomic mode, the claim is committed together with its result, so other requests never see the claim in progress. If
another request sees a claim in progress, the work has ended its own transaction in the middle (with a raw COMMIT, with
DDL on MariaDB, or with `executescript` on SQLite), and then the work was interrupted. Everything that the work wrote
before this COMMIT stays in the database, so no retry must run. The outcome is `InDoubt` and not `Conflicted`, because a
client that is told "still being processed, retry later" would wait for ever. A person has to look at the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from . import outcomes
from .digests import Identity
from .outcomes import ClaimRequest, Resource, Snapshot


class Status(StrEnum):
    """The states of a stored key. `IdempotencyKey.Status` has the same values, with labels for people."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """One row of the key table, as a store has read it.

    expired: if True, the key is treated as a new key. A key in progress or in doubt never expires.
    lapsed: whether the row has a lease that is over.
    unleased: whether the row is in progress and has no lease. See Note [A committed claim without a lease].
    lease_left: seconds until the lease is over. Without a lease or after its end, the number is 0 or negative.
    response: decrypts the stored response of this row. The function is called for a replay only.
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
    """The decision to claim a row again as a new key, because the row has expired."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The decision after an attempt that failed or was abandoned. The store locks the row, reads the calls in doubt,
    and then calls `resumed`.
    """


Decision = TakeOver | Resume | outcomes.Known


def decide(stored: StoredKey, wanted: ClaimRequest) -> Decision:
    """What to do about a request whose key is stored already. The rules are tried from top to bottom, and the first
    rule that fits decides.
    """
    of = wanted.identity
    if (stored.scope, stored.operation, stored.key) != (of.scope, of.operation, of.key):
        # The row was found by its hashes, but the row belongs to another caller or another key with the same hashes. So
        # the request is refused, and sees nothing of this row.
        return outcomes.Mismatched()
    if stored.expired:
        return outcomes.TooOld() if wanted.known_only else TakeOver()
    if stored.status is Status.IN_PROGRESS and not (stored.lapsed or stored.unleased):
        return outcomes.Conflicted(lease_left=stored.lease_left, resource=stored.resource)
    if None not in (stored.fingerprint, wanted.fingerprint) and stored.fingerprint != wanted.fingerprint:
        return outcomes.Mismatched(resource=stored.resource)
    if stored.status is Status.COMPLETED:
        return outcomes.Completed(snapshot=stored.response(stored, of), resource=stored.resource)
    return outcomes.InDoubt(attempt=stored.attempt, resource=stored.resource) if stored.unleased else Resume()


def resumed(
    stored: StoredKey, wanted: ClaimRequest, calls: tuple[str, ...], writes: tuple[str, ...] = ()
) -> outcomes.Claimed | outcomes.InDoubt:
    """The outcome for a request that resumes a locked row.

    Args:
        stored: the row.
        wanted: the request.
        calls: names of the calls in doubt. The work repeats them if the request allows repeated calls.
        writes: names of the writes in doubt. They are never repeated, because a repeated write would write twice.
    """
    if writes or (calls and not wanted.repeats_calls):
        # The attempt number of the row does not change. So if the worker of the last attempt is still alive, it can
        # store the result of the call.
        return outcomes.InDoubt(attempt=stored.attempt, resource=stored.resource)
    abandoned = stored.status is Status.IN_PROGRESS
    return outcomes.Claimed(
        id=stored.id,
        attempt=stored.attempt + 1,
        key_hash=wanted.identity.key_hash,
        scope_hash=wanted.identity.scope_hash,
        abandoned=abandoned,
        in_doubt=calls,
        resource=stored.resource,
        fingerprint=stored.fingerprint,
    )
