"""Waiting for the request that runs the same key: ask again, with no transaction open in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from ..protocol.outcomes import ClaimOutcome, Conflicted

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two claims of a waiting duplicate: soon enough for a fast view, few queries for a slow one."""


def waited_for(claim: Callable[[], ClaimOutcome], wait: float) -> ClaimOutcome:
    """What the claim comes to. While another request runs the key, claim again for up to `wait` seconds.

    Each claim begins and ends its own transaction, so that a pause holds no lock and no snapshot. The last claim comes
    when `wait` is over.
    """
    outcome = claim()
    deadline, pause = time.monotonic() + wait, FIRST_PAUSE
    while isinstance(outcome, Conflicted) and (left := deadline - time.monotonic()) > 0:
        # Jitter, so that many duplicates do not ask at the same moment.
        time.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # nosec B311  # noqa: S311 (no secret)
        pause = min(2 * pause, LONGEST_PAUSE)
        outcome = claim()
    return outcome
