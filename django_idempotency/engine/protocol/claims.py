"""What a store is asked: may this run?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
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
        deadline: when `wait` is over, by the monotonic clock. None: the claim has not begun.
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0
    lease: float | None = None
    repeats_calls: bool = False
    policy: Literal["retry", "hold"] | None = None
    known_only: bool = False
    deadline: float | None = None

    def begun(self) -> ClaimRequest:
        """The same, as a claim that has begun: all its statements, and those of a repeated claim, share `wait`."""
        if self.deadline is not None or not self.wait:
            return self
        return replace(self, deadline=monotonic() + self.wait)

    @property
    def left(self) -> float:
        """Seconds of `wait` that are left."""
        return self.wait if self.deadline is None else max(0.0, self.deadline - monotonic())
