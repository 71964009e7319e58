"""Claiming a key: again after a deadlock, and for as long as a duplicate waits for the request that runs its key."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Conflicted, Unavailable
from ..stores import Store

if TYPE_CHECKING:
    from ..conf import Idempotency
    from ..protocol.digests import Identity

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two claims of a waiting duplicate: soon enough for a fast view, few queries for a slow one."""


def claim_request(options: Idempotency, identity: Identity, fingerprint: bytes | None) -> ClaimRequest:
    """What resolved options ask for."""
    return ClaimRequest(
        identity=identity,
        fingerprint=fingerprint,
        ttl=options.ttl_seconds,
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        repeats_calls=options.repeats_calls,
        policy=options.policy,
    )


def is_alone(store: Store) -> bool:
    """Whether a transaction that begins now holds nothing of a caller. That of a `TestCase` counts as no caller's."""
    connection = store.connection
    if connection.in_atomic_block:
        blocks: Any = connection.atomic_blocks
        return bool(blocks and blocks[-1]._from_testcase)
    return connection.get_autocommit() and not store.has_begun(connection)


def claimed(store: Store, claim: Callable[[], ClaimOutcome], wait: float = 0) -> ClaimOutcome:
    """What the claim comes to. While another request runs the key, claim again for up to `wait` seconds.

    After a deadlock or a serialization failure, claim once more: nothing has run yet. Still, only a claim that is alone
    may be repeated. Inside an outer `atomic()`, the database may have rolled back the writes of the caller as well, so
    only the caller can start again. There a duplicate does not wait either.
    """
    outcome: ClaimOutcome = Conflicted()
    end = time.monotonic() + wait  # under other isolation levels, MySQL may hold the first claim up
    for _ in range(2):
        try:
            outcome = claim()
            break
        except DatabaseError as error:
            if store.code(error) in store.busy:
                return Unavailable()
            if not (store.code(error) in store.repeatable and is_alone(store)):
                store.explain(error)
                raise
    if wait and isinstance(outcome, Conflicted) and is_alone(store):
        return _waited_for(store, claim, outcome, end)
    return outcome


def _waited_for(store: Store, claim: Callable[[], ClaimOutcome], outcome: ClaimOutcome, end: float) -> ClaimOutcome:
    """Claim again and again. The last claim comes at `end`, a time of `time.monotonic()`.

    Each claim begins and ends its own transaction, so that a pause holds no lock and no snapshot.
    """
    pause = FIRST_PAUSE
    while isinstance(outcome, Conflicted) and (left := end - time.monotonic()) > 0:
        # Jitter, so that many duplicates do not ask at the same moment.
        time.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # nosec B311  # noqa: S311 (no secret)
        pause = min(2 * pause, LONGEST_PAUSE)
        outcome = claimed(store, claim)
    return outcome
