"""What a store is asked: may this run?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .digests import Identity


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
        known_only: never insert a row nor take over an expired one. Without a row that lives: `TooOld`.
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0
    lease: float | None = None
    repeats_calls: bool = False
    policy: Literal["retry", "hold"] | None = None
    known_only: bool = False
