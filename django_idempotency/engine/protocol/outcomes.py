"""The request to a store, the outcomes of a claim, and the outcomes of the work under a claim. There are no other
outcomes than those in this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Generic, Literal, TypeVar

from .digests import Identity

T = TypeVar("T")
SHORTEST_RETRY_AFTER = 1
"""The shortest `Retry-After`, in seconds. An atomic request has no lease, and usually ends soon."""
LONGEST_RETRY_AFTER = 60
"""The longest `Retry-After`, in seconds. The running request often ends long before its lease, and several client
libraries ignore a longer wait.
"""
Headers = tuple[tuple[str, str], ...]
Resource = tuple[str, str]
"""The object that an operation is about: its type and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Status, headers and body of a final response. If the body is None, the key is completed without a response.

    The `repr` shows no headers and no body, because programs write a `repr` to logs.
    """

    status_code: int
    headers: Headers = field(repr=False)
    body: bytes | None = field(repr=False)

    def header(self, name: str) -> str | None:
        """The value of the first header with this name (case-insensitive), or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """The request to run a piece of work once.

    Args:
        identity: scope, operation and key.
        fingerprint: 32 bytes, a hash of the payload, or None if payloads are not compared.
        ttl: seconds that the result is kept.
        wait: seconds that a duplicate of a running request waits for its result.
        lease: seconds after which a committed claim ends if the claim is not renewed. With None, the claim is committed
            only together with its result.
        repeats_calls: whether the work runs again while an external call of an earlier attempt is in doubt. It is True
            for the policy "retry", and also for "hold" if the project has a `reconcile`.
        policy: the option `on_abandoned`, which the row stores as information for people, or None without a lease.
        known_only: if True, the outcome is `TooOld` for a key without a row or with an expired row, and no row is
            written. Late keys and the recovery use it.
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0
    lease: float | None = None
    repeats_calls: bool = False
    policy: Literal["retry", "hold"] | None = None
    known_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """This request has claimed the key. The caller runs the work, and then completes, releases or fails row `id`.

    attempt: the fencing token.
    key_hash, scope_hash: hashes of the identity. Each statement looks for the id and for the hashes, so that it cannot
        change another tenant's row with the same id.
    abandoned: the worker of an earlier attempt died, or the earlier attempt's lease ended before its work.
    in_doubt: names of external calls of earlier attempts. It is not known whether these calls took effect.
    resource: the object that an earlier attempt has referred to.
    fingerprint: the fingerprint of the row. Sealed values of the row are bound to this fingerprint.
    """

    id: int
    attempt: int
    key_hash: int
    scope_hash: int
    abandoned: bool = False
    in_doubt: tuple[str, ...] = ()
    resource: Resource | None = None
    fingerprint: bytes | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An earlier request has done the work, so its response is replayed."""

    snapshot: Snapshot
    resource: Resource | None = None


@dataclass(frozen=True, slots=True)
class Mismatched:
    """An earlier request has used the key with another payload.

    resource: the object that the earlier request has referred to, if the same caller sent that request.
    """

    resource: Resource | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another request is doing the work right now.

    lease_left: seconds until the lease of the running request is over. The number is 0 if that request has no lease, or
        if its row is not committed yet.
    resource: the object that the running request has referred to.
    """

    lease_left: float = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)

    @property
    def retry_after(self) -> int:
        """Whole seconds after which the client should retry.

        If the worker has died, the key is free when the lease is over, so an earlier retry would be refused again.
        """
        return max(SHORTEST_RETRY_AFTER, min(ceil(self.lease_left), LONGEST_RETRY_AFTER))


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An earlier attempt was interrupted. It is not known whether its work took effect. A person or `reconcile`
    decides.

    There are two cases. Under `on_abandoned="hold"`, an external call has no result. Or the work has ended the
    transaction of its own key.

    attempt: the number of the key's last attempt. With this number, two doubts about one key can be told apart.
    resource: the object that the operation has referred to.
    """

    attempt: int = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store did not answer in time (SQLite's write lock). Nothing has run."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """No row has this key, and the key is too old to be new. Perhaps its request has run and its row was deleted."""


Known = Completed | Mismatched | Conflicted | InDoubt | TooOld
"""The outcomes for a request that must not run because its key is stored already."""
Refusal = Mismatched | Conflicted | InDoubt | Unavailable | TooOld
ClaimOutcome = Claimed | Completed | Refusal


class Verdict(Enum):
    """What happens to the business write and to the key after the work has returned.

    In leased mode the writes are committed already, step by step. So in leased mode the package rolls no write back and
    frees no key, but marks the key as `failed` and keeps the steps of the key.
    """

    KEEP = "commit the write, complete the key"
    RELEASE = "commit the write, free the key"
    ROLL_BACK = "roll the write back, free the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Generic[T]):
    """The work has returned. With `Verdict.KEEP`, the `snapshot` is stored. Otherwise, `reason` says why it is not
    stored.

    resource: the object that the work has referred to.
    """

    value: T
    verdict: Verdict
    snapshot: Snapshot | None = None
    reason: str = ""
    resource: Resource | None = None


Outcome = Finished[T] | Completed | Refusal
"""All outcomes of running a piece of work once."""
