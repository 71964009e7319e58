"""What a store is asked, what a claim comes to, and what the work under a claim comes to: two closed sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Generic, Literal, TypeVar

from .digests import Identity

T = TypeVar("T")
SHORTEST_RETRY_AFTER = 1
"""Seconds. An atomic request ends with its transaction. When that will be is unknown, and mostly soon."""
LONGEST_RETRY_AFTER = 60
"""Seconds. A worker that lives may end long before its lease. And several client libraries ignore a longer wait."""
Headers = tuple[tuple[str, str], ...]
Resource = tuple[str, str]
"""What an operation is about: a type and an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Status, headers and body of a final response. Without a body, the key is completed and the response not stored.

    Its `repr` shows no headers and no body, because logs may have it.
    """

    status_code: int
    headers: Headers = field(repr=False)
    body: bytes | None = field(repr=False)

    def header(self, name: str) -> str | None:
        """The first header of that name (case-insensitive), if there is one."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """The request to run something once.

    Args:
        identity: scope, operation and key.
        fingerprint: 32 bytes, a hash of the payload. None: payloads are not compared.
        ttl: seconds that the result is kept.
        wait: seconds that a duplicate of a running request waits for its result.
        lease: seconds that a committed claim is valid unless it is renewed. None: the claim lives in its transaction.
        repeats_calls: whether the work may run again while an external call of an earlier attempt is in doubt. With
            the policy "hold" it may, too, if the project can tell what became of the call (`reconcile`).
        policy: the work's `on_abandoned`, which the row keeps for people. None: the work has no lease.
        known_only: never insert a row, and never take over an expired one. If the key has no row, or an expired one,
            the outcome is `TooOld`. For late keys, and for the recovery.
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
    """The key is ours: run the work, then complete, release or fail row `id`. `attempt` is the fencing token.

    key_hash, scope_hash: of the identity. With them, a statement cannot meet another tenant's row with the same id.
    abandoned: the worker of an earlier attempt died, or its lease ended before its work.
    in_doubt: names of external calls of earlier attempts that may or may not have taken effect.
    resource: what an earlier attempt has referred to.
    fingerprint: that of the row. What is sealed is bound to it.
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
    """An earlier request has done the work: replay its response."""

    snapshot: Snapshot
    resource: Resource | None = None


@dataclass(frozen=True, slots=True)
class Mismatched:
    """An earlier request has used the key with another payload.

    resource: what that request has referred to, if it was the same caller's.
    """

    resource: Resource | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another request is doing the work right now.

    lease_left: seconds until the lease of that request is over. 0: the request has no lease, or a transaction hides it.
    resource: what that request has referred to by now.
    """

    lease_left: float = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)

    @property
    def retry_after(self) -> int:
        """Whole seconds after which a retry is worth its while.

        If the worker has died, the key is free when the lease is over. To come back earlier would only cost attempts.
        """
        return max(SHORTEST_RETRY_AFTER, min(ceil(self.lease_left), LONGEST_RETRY_AFTER))


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An earlier attempt was interrupted, and what it did may have taken effect. A person or `reconcile` decides.

    An external call has no result under `on_abandoned="hold"`, or the work has ended the transaction of its own key.

    attempt: of the key. It tells one doubt from the next.
    resource: what the operation has referred to.
    """

    attempt: int = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store did not answer in time (SQLite's write lock). Nothing has run."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """No row knows the key, and the key is too old to be a new one: it may have run before its row was cleaned up."""


Known = Completed | Mismatched | Conflicted | InDoubt | TooOld
"""What a stored key may mean for a request that must not run."""
Refusal = Mismatched | Conflicted | InDoubt | Unavailable | TooOld
ClaimOutcome = Claimed | Completed | Refusal


class Verdict(Enum):
    """What happens to the business write and to the key after the work has returned.

    Leased work has committed its writes step by step. In leased mode, a key that is not kept is `failed`, with its
    steps.
    """

    KEEP = "commit the write, complete the key"
    RELEASE = "commit the write, free the key"
    ROLL_BACK = "roll the write back, free the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Generic[T]):
    """The work returned. `snapshot` is stored under `Verdict.KEEP`; `reason` says why nothing is stored.

    resource: what the work has referred to.
    """

    value: T
    verdict: Verdict
    snapshot: Snapshot | None = None
    reason: str = ""
    resource: Resource | None = None


Outcome = Finished[T] | Completed | Refusal
"""The outcome of running something once."""
