"""What a store is asked: may this run?"""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0
    lease: float | None = None
    repeats_calls: bool = False
