"""Claim a key. After a deadlock, the claim is made again.

A duplicate can wait for the end of the running request. After each pause, the duplicate claims the key again.
"""

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
"""Seconds between two claims of a waiting duplicate. The first pauses are short for the sake of fast views, and the
later pauses are long to save queries."""


def claim_request(options: Idempotency, identity: Identity, fingerprint: bytes | None) -> ClaimRequest:
    """Return a claim request with the values of the resolved options."""
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
    """Return whether the caller has no open transaction. Then a new transaction contains only this package's writes.

    The transaction of a `TestCase` is not treated as a caller's transaction.
    """
    connection = store.connection
    if connection.in_atomic_block:
        blocks: Any = connection.atomic_blocks
        return bool(blocks and blocks[-1]._from_testcase)
    return connection.get_autocommit() and not store.has_begun(connection)


def claimed(store: Store, claim: Callable[[], ClaimOutcome], wait: float = 0) -> ClaimOutcome:
    """Claim the key, and return the outcome of the claim.

    If another request has claimed the key, try again for up to `wait` seconds. After a deadlock or a serialization
    failure, the key is claimed a second time, because the work has not run yet. The second claim is made only if the
    caller has no open transaction. Inside an outer `atomic()`, a deadlock can also roll back the caller's writes, and
    only the caller can make these writes again. Inside an outer `atomic()`, a duplicate never waits for the running
    request.
    """
    outcome: ClaimOutcome = Conflicted()
    # `end` is computed before the first claim, because MySQL can delay this claim under some isolation levels.
    end = time.monotonic() + wait
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
    """Claim the key again and again until the time `end`. The last claim is made at the time `end`.

    `end` is a time of `time.monotonic()`. Each claim begins and ends its own transaction. So during the pause between
    two claims, the database keeps no lock and no snapshot for this request.
    """
    pause = FIRST_PAUSE
    while isinstance(outcome, Conflicted) and (left := end - time.monotonic()) > 0:
        # The pause is random, so that many duplicates do not claim at the same moment.
        time.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # nosec B311  # noqa: S311 (no secret)
        pause = min(2 * pause, LONGEST_PAUSE)
        outcome = claimed(store, claim)
    return outcome
