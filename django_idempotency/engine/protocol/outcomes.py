"""The possible outcomes of a claim, and of the work under a claim: two closed sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .snapshots import Snapshot

T = TypeVar("T")
SHORTEST_RETRY_AFTER = 1
"""Seconds. An atomic request ends with its transaction. When that will be is unknown, and mostly soon."""
LONGEST_RETRY_AFTER = 60
"""Seconds. A worker that lives may end long before its lease. And several client libraries ignore a longer wait."""
Resource = tuple[str, str]
"""What an operation is about: a type and an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the key table. The hashes name its partition, and belong to one tenant only; an `id` does not."""

    key_hash: int
    scope_hash: int
    id: int

    @property
    def found_by(self) -> list[int]:
        """The parameters of `Conditions.same_row`."""
        return [self.key_hash, self.scope_hash, self.id]


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

    @property
    def row(self) -> Row:
        return Row(key_hash=self.key_hash, scope_hash=self.scope_hash, id=self.id)

    @property
    def fence(self) -> list[int]:
        """The parameters of `Conditions.fence`. See Note [Fencing]."""
        return [self.key_hash, self.scope_hash, self.id, self.attempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An earlier request has done the work: replay its response."""

    snapshot: Snapshot
    resource: Resource | None = None


@dataclass(frozen=True, slots=True)
class Mismatched:
    """An earlier request has used the key with another payload."""


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another request is doing the work right now.

    lease_left: seconds until the lease of that request is over. 0: the request has no lease, or a transaction hides it.
    """

    lease_left: float = field(default=0, compare=False)

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

    def about(self, resource: Resource | None) -> Finished[T]:
        """The same, with what the work has referred to, if it has."""
        return self if resource is None else replace(self, resource=resource)


Outcome = Finished[T] | Completed | Refusal
"""The outcome of running something once."""
