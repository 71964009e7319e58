"""What must a store do, how can a claim end, and how can the work end?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from math import ceil
from typing import Generic, Literal, TypeVar

from .digests import Identity
from .key_syntax import gettext_noop

T = TypeVar("T")
SHORTEST_RETRY_AFTER = 1
"""The shortest `Retry-After`, in seconds. An atomic request has no lease, and usually ends soon."""
LONGEST_RETRY_AFTER = 60
"""The longest `Retry-After`, in seconds. A request often ends long before its lease expires, and several client
libraries ignore a longer wait."""
UNKEYED = gettext_noop(
    "The call '%(step)s' is not repeated, because one of its starts carried no derived key, or the first is older than "
    "DERIVED_KEYS_LAST. Send operation.derive_key('%(step)s') with it in each attempt, or pass on_abandoned=\"retry\" "
    "if making it twice is harmless."
)
"""Tells a developer why a call was not repeated. Shown in the log, in `OutcomeUnknown` and, with DEBUG, in the 409."""
Headers = tuple[tuple[str, str], ...]
Resource = tuple[str, str]
"""The object that an operation is about: its type and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The status, headers and body of a final response. Without a body, it is a tombstone: no response was kept."""

    status_code: int
    headers: Headers = field(repr=False)  # logs often contain a `repr`, and headers can contain secrets
    body: bytes | None = field(repr=False)

    def header(self, name: str) -> str | None:
        """Return the value of the first header with this name, ignoring case, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def without_body(self) -> Snapshot:
        location = self.header("Location")
        return replace(self, headers=() if location is None else (("Location", location),), body=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Everything a store needs to claim a key.

    Args:
        identity: the scope, operation and key.
        fingerprint: a 32-byte hash of the payload, or None if payloads are not compared.
        earlier: hashes of the same payload by earlier versions of the comparison rule, if they differ.
        ttl: seconds for which the result is kept.
        wait: seconds for which a duplicate of a running request waits for that request's result.
        lease: seconds after which a committed claim lapses unless it is renewed. With None, the claim is committed only
            together with its result.
        policy: the `on_abandoned` option, or None without a lease. It decides what happens to calls in doubt; the
            row stores it for people to see.
        observes: whether the view runs in any case, without looking at the steps of earlier attempts.
        reconciles: whether the project's `reconcile` is asked about calls in doubt before any is repeated.
        keys_last: seconds for which called services remember a derived key, for the "retry-keyed" policy.
        known_only: write no row; a key without a row, or with an expired row, is `TooOld`. Used by the recovery.
        waits_since: since when the key has needed attention. If a recovery's attempt settles nothing, this time
            stays the same.
        late: for keys that contain their creation time. Called with the database's time in seconds since 1970, it
            returns whether a key without a row is too old to count as new. If `late` is set, an expired row is never
            taken over.
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0
    lease: float | None = None
    policy: Literal["retry-keyed", "retry", "hold"] | None = None
    observes: bool = False
    reconciles: bool = False
    keys_last: float = 0
    known_only: bool = False
    waits_since: datetime | None = None
    late: Callable[[float], bool] | None = None
    earlier: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """This request holds the key: run the work, then complete the row, release it or mark it as failed.

    Attributes:
        attempt: the number of this attempt, which is the fencing token.
        key_hash, scope_hash: hashes of the identity. Every statement filters by them as well as by the id, so that it
            cannot change another tenant's row with the same id.
        abandoned: whether an earlier attempt's worker died, or outlived its lease.
        in_doubt: names of earlier attempts' external calls that may or may not have taken effect.
        resource: the object that an earlier attempt referred to.
        fingerprint: the row's fingerprint, to which its sealed values are bound.
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
    """An earlier request has done the work; its stored response is replayed."""

    snapshot: Snapshot
    resource: Resource | None = None


@dataclass(frozen=True, slots=True)
class Mismatched:
    """An earlier request used the same key with a different payload.

    Attributes:
        resource: the object that the earlier request referred to, if the same caller sent it.
        refused: whether the earlier request's stored response is an error.
    """

    resource: Resource | None = field(default=None, compare=False)
    refused: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another request with the same key is running right now.

    Attributes:
        lease_left: seconds until the other request's lease expires; 0 if it has no lease, or no committed row yet.
        resource: the object that the other request has referred to.
    """

    lease_left: float = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)

    @property
    def retry_after(self) -> int:
        """How many seconds the client should wait. If the worker died, retries are refused until its lease expires."""
        return max(SHORTEST_RETRY_AFTER, min(ceil(self.lease_left), LONGEST_RETRY_AFTER))


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An earlier attempt was interrupted and may have taken effect: a person or the project's code must decide.

    Possible causes:

    * A call has no result, the view has no `reconcile`, and the `on_abandoned` policy forbids repeating the call. The
      policy "hold" always forbids it. The policy "retry-keyed" forbids it if the called service would not recognize the
      call by its derived key.
    * A write has no result, because the project's function ended the transaction itself.
    * The work ended the transaction that claimed the key.
    * The key has leased-mode steps, but the view now runs in atomic mode.

    Attributes:
        attempt: the number of the key's last attempt, which distinguishes two doubts about one key.
        resource: the object that the operation has referred to.
        unkeyed: names of calls that "retry-keyed" does not repeat, because the called service would not recognize them.
        undecided: what the project's `reconcile` said when it could not tell yet, or "" if it was not called.
    """

    attempt: int = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)
    unkeyed: tuple[str, ...] = field(default=(), compare=False)
    undecided: str = field(default="", compare=False)

    @property
    def choice(self) -> str:
        """Advice for developers on how to have the calls in `unkeyed` repeated. Empty if `unkeyed` is empty."""
        return " ".join(UNKEYED % {"step": step} for step in self.unkeyed)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store cannot be used at the moment, for instance because of SQLite's write lock. Nothing was done."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """The key is refused although no live row holds it, for instance because its timestamp is too old.

    A request with this key may have run already, and its row may have expired or been deleted since.
    """


@dataclass(frozen=True, slots=True)
class Withheld:
    """An earlier request has done the work, and `may_replay` refuses to replay its response to this one."""


Known = Completed | Mismatched | Conflicted | InDoubt | TooOld
"""The ways in which a request can end without running, because its key is already stored."""
Refusal = Mismatched | Conflicted | InDoubt | Unavailable | TooOld
ClaimOutcome = Claimed | Completed | Refusal


class Verdict(Enum):
    """What happens to the business write and to the key once the work has returned.

    In leased mode, every write is committed before the work returns, so it can't be rolled back. A key that would be
    freed is marked as failed instead, and keeps its steps.
    """

    KEEP = "commit the write, complete the key"
    RELEASE = "commit the write, free the key"
    ROLL_BACK = "roll the write back, free the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Generic[T]):
    """The work has returned.

    Attributes:
        snapshot: what is stored, if the verdict is `Verdict.KEEP`: see `final`.
        reason: why nothing is stored, for every other verdict.
        resource: the object that the work has referred to.
        unstored: whether a backend failed to store the final result, so that a retry may run the work again.
        held: whether the key blocks every retry, because the work ended its own transaction and committed the claim.
    """

    value: T
    verdict: Verdict
    snapshot: Snapshot | None = None
    reason: str = ""
    resource: Resource | None = None
    unstored: bool = False
    held: bool = False

    @property
    def final(self) -> Snapshot | None:
        """The response to store, or None if the key is freed or marked as failed."""
        return self.snapshot if self.verdict is Verdict.KEEP else None


Outcome = Finished[T] | Completed | Refusal | Withheld
"""The ways in which running a piece of work once can end."""
