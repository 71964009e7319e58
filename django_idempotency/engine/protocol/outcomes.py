"""This module has the class `ClaimRequest`, and one class for each outcome of a claim. The class `Finished` describes
the outcome of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil
from typing import Generic, Literal, TypeVar

from .digests import Identity
from .key_syntax import gettext_noop

T = TypeVar("T")
SHORTEST_RETRY_AFTER = 1
"""The shortest `Retry-After`, in seconds. An atomic request has no lease, and usually ends soon."""
LONGEST_RETRY_AFTER = 60
"""The longest `Retry-After`, in seconds. The running request often ends long before its lease, and several client
libraries ignore a longer wait.
"""
UNKEYED = gettext_noop(
    "The call '%(step)s' is not repeated, because one of its starts carried no derived key, or the first is older than "
    "DERIVED_KEYS_LAST. Send operation.derive_key('%(step)s') with it in each attempt, or pass on_abandoned=\"retry\" "
    "if making it twice is harmless."
)
"""Said where a developer meets a held call: in the log, in `OutcomeUnknown`, and with DEBUG in the 409."""
Headers = tuple[tuple[str, str], ...]
Resource = tuple[str, str]
"""The object that an operation is about: its type and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot has the status, headers and body of a final response.

    If the body is None, the key is completed without a response.
    """

    status_code: int
    headers: Headers = field(repr=False)  # logs often contain a `repr`, and headers can contain secrets
    body: bytes | None = field(repr=False)

    def header(self, name: str) -> str | None:
        """Return the value of the first header with this name. If no header has this name, return None. Upper case and
        lower case make no difference.
        """
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def without_body(self) -> Snapshot:
        """Return the tombstone of this response."""
        location = self.header("Location")
        return replace(self, headers=() if location is None else (("Location", location),), body=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A claim request contains everything that the store needs to claim a key.

    Args:
        identity: scope, operation and key.
        fingerprint: 32 bytes, a hash of the payload, or None if payloads are not compared.
        ttl: seconds that the result is kept.
        wait: seconds that a duplicate of a running request waits for its result.
        lease: seconds after which a committed claim ends if the claim is not renewed. With None, the claim is committed
            only together with its result.
        policy: the option `on_abandoned`, or None without a lease. It decides about calls in doubt; the row stores it
            for people.
        reconciles: whether the project has a `reconcile`, which is asked about calls in doubt before any is repeated.
        keys_last: seconds for which other systems remember a derived key, for the policy "retry-keyed".
        known_only: if True, the outcome is `TooOld` for a key without a row or with an expired row, and no row is
            written. The recovery uses it.
        late: for keys that say when they were made. Called with the database's time in seconds since 1970, it returns
            whether a key without a row is too old to be new. An expired row is never taken over.
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0
    lease: float | None = None
    policy: Literal["retry-keyed", "retry", "hold"] | None = None
    reconciles: bool = False
    keys_last: float = 0
    known_only: bool = False
    late: Callable[[float], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """This request has claimed the key, so the caller must run the work.

    After the work, the caller must complete the claimed row, release the row, or mark the row as failed.

    Attributes:
        attempt: the number of the attempt, which is the fencing token.
        key_hash, scope_hash: hashes of the identity. Each SQL statement looks for the id and for both hashes. So no
            statement can change a row of another tenant with the same id.
        abandoned: True if the worker of an earlier attempt died, or if the lease of an earlier attempt ended before the
            work ended.
        in_doubt: the names of external calls of earlier attempts, if it is not known whether these calls took effect.
        resource: the object that an earlier attempt has referred to.
        fingerprint: the fingerprint in the row. Sealed values of the row are bound to this fingerprint.
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
    """An earlier request has done the work, so the stored response is replayed."""

    snapshot: Snapshot
    resource: Resource | None = None


@dataclass(frozen=True, slots=True)
class Mismatched:
    """An earlier request has used the same key with a different payload.

    Attributes:
        resource: the object that the earlier request has referred to, if the same caller sent that request.
        refused: whether the stored response of the earlier request is an error.
    """

    resource: Resource | None = field(default=None, compare=False)
    refused: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another request with the same key is doing the work right now.

    Attributes:
        lease_left: the seconds until the lease of the running request ends. The number is 0 if the running request has
            no lease, or if its row is not committed yet.
        resource: the object that the running request has referred to.
    """

    lease_left: float = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)

    @property
    def retry_after(self) -> int:
        """Return how many seconds the client should wait before a retry. The result is a whole number.

        If the worker has died, the package refuses every retry until the lease ends.
        """
        return max(SHORTEST_RETRY_AFTER, min(ceil(self.lease_left), LONGEST_RETRY_AFTER))


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An earlier attempt was interrupted, and it is not known whether the attempt took effect.

    A person or the project's code must decide about the key. The possible causes are:

    * An external call has no result, and the view has no function `reconcile`. The option `on_abandoned` is "hold", or
      it is "retry-keyed" and the call cannot be recognized by its derived key.
    * A write has no result, because the project's function has ended the transaction itself.
    * The work has ended the transaction that claimed the key.
    * The key has steps of leased mode, but the view now runs in atomic mode.

    Attributes:
        attempt: the number of the key's last attempt. Two doubts about one key have different numbers.
        resource: the object that the operation has referred to.
        unkeyed: the names of calls that "retry-keyed" does not repeat, because the other system could not recognize
            them.
    """

    attempt: int = field(default=0, compare=False)
    resource: Resource | None = field(default=None, compare=False)
    unkeyed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def choice(self) -> str:
        """What a developer can do so that calls like those in `unkeyed` are repeated, or an empty text."""
        return " ".join(UNKEYED % {"step": step} for step in self.unkeyed)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store cannot be used now, for example because of SQLite's write lock. Nothing was done."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """The key has no row, or its row has expired. The package refuses the key, even if no row for this key is stored.
    For example, the time stamp in the key is too old.

    Perhaps a request with this key has already run, and the package has deleted the key's row.
    """


Known = Completed | Mismatched | Conflicted | InDoubt | TooOld
"""The outcomes for a request that must not run because its key is stored already."""
Refusal = Mismatched | Conflicted | InDoubt | Unavailable | TooOld
ClaimOutcome = Claimed | Completed | Refusal


class Verdict(Enum):
    """After the work has returned, a `Verdict` decides what happens to the business write and to the key.

    In leased mode, every write is committed before the work returns, so the value `ROLL_BACK` cannot undo a write. In
    leased mode, the values `RELEASE` and `ROLL_BACK` do not free the key. Instead, the package marks the key as failed,
    and keeps the steps of the key.
    """

    KEEP = "commit the write, complete the key"
    RELEASE = "commit the write, free the key"
    ROLL_BACK = "roll the write back, free the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Generic[T]):
    """A `Finished` object contains the value that the work has returned.

    If the attribute `verdict` is `Verdict.KEEP`, the package stores the attribute `snapshot`. For every other verdict,
    the attribute `reason` says why the package stores no snapshot.

    Attributes:
        resource: the object that the work has referred to.
        unstored: True if a backend did not take the final result, so a retry may run the work again.
    """

    value: T
    verdict: Verdict
    snapshot: Snapshot | None = None
    reason: str = ""
    resource: Resource | None = None
    unstored: bool = False


Outcome = Finished[T] | Completed | Refusal
"""All outcomes of running a piece of work once."""
