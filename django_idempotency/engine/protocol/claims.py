"""What a store is asked: may this run?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

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
        repeats_calls: whether the work may run again while an external call of an earlier attempt is in doubt.
        holds: the work's `on_abandoned` is "hold". With `reconcile` it may run again all the same.
        known_only: never insert a row nor take over an expired one. Without a row that lives: `TooOld`.
        deadline: when `wait` is over, by the monotonic clock. None: the claim has not begun.
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0
    lease: float | None = None
    repeats_calls: bool = False
    holds: bool = False
    known_only: bool = False
    deadline: float | None = None

    def begun(self) -> ClaimRequest:
        """The same, as a claim that has begun: all its statements, and those of a repeated claim, share `wait`."""
        if self.deadline is not None or not self.wait:
            return self
        return replace(self, deadline=monotonic() + self.wait)

    @property
    def policy(self) -> str | None:
        """What the work has declared about calls in doubt, as the row keeps it: `IdempotencyKey.Policy`."""
        if self.lease is None:
            return None
        return "hold" if self.holds or not self.repeats_calls else "retry"

    @property
    def left(self) -> float:
        """Seconds of `wait` that are left."""
        return self.wait if self.deadline is None else max(0.0, self.deadline - monotonic())
