"""What a claim can come to, and what the work under it can come to: two closed sets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .snapshots import Snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The key is ours: run the work, then complete, release or fail row `id`. `attempt` is the fencing token.

    abandoned: an earlier attempt's worker died, or let its lease lapse.
    in_doubt: names of external calls of earlier attempts whose outcome nobody knows.
    """

    id: int
    attempt: int
    abandoned: bool = False
    in_doubt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The work was done before: replay its result."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Mismatched:
    """The key was used before with another payload."""


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The work is being done right now by somebody else."""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An external call of an earlier attempt may or may not have happened, and must not happen twice."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store could not be asked in time (SQLite's write lock): nothing has run."""


Refusal = Mismatched | Conflicted | InDoubt | Unavailable
ClaimOutcome = Claimed | Completed | Refusal


class Verdict(Enum):
    """What becomes of the business write and of the key once the work has returned.

    Leased work has committed its writes step by step: there, a key that is not kept is `failed`, with its steps.
    """

    KEEP = "commit the write, complete the key"
    RELEASE = "commit the write, free the key"
    ROLL_BACK = "roll the write back, free the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Generic[T]):
    """The work returned. `snapshot` is what is kept under `Verdict.KEEP`; `reason` says why it is not kept."""

    value: T
    verdict: Verdict
    snapshot: Snapshot | None = None
    reason: str = ""


Outcome = Finished[T] | Completed | Refusal
"""What running something once comes to."""
