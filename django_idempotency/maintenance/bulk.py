"""One decision about many keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..exceptions import NotResolvable

if TYPE_CHECKING:
    from ..models import IdempotencyKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What came of a decision about many keys.

    Attributes:
        resolved: how many keys were resolved.
        refused: how many had changed since they were listed, or have a worker with a live lease.
    """

    resolved: int
    refused: int


def resolve_all(
    keys: Iterable[IdempotencyKey], decision: Callable[..., None], *args: Any, by: str = "", reason: str = ""
) -> Resolved:
    """Take the same decision about each of these keys: `resolve_all(in_doubt(), close_with, Snapshot(…))`.

    Decides about the rows as they were read, each at its attempt. A key whose attempt has changed since is refused. A
    queryset that was read already is not asked again: list it first, and exactly the listed keys are decided about.

    Each key is resolved in a transaction of its own (inside an outer `atomic()`: a savepoint). An error leaves the keys
    before it resolved.

    Args:
        keys: such as `stuck()` or `in_doubt().filter(operation="POST pay/")`, or a list of rows.
        decision: `release_for_retry`, `record_outcome` or `close_with`.
        args: what the decision needs: a step and its result, or a response.
        by, reason: who decides, and why. Kept with each key: see `maintenance.decisions`.

    Returns:
        How many keys were resolved, and how many refused.

    Raises:
        ValueError, TypeError: as the decision does.
    """
    resolved = refused = 0
    for key in keys:
        try:
            decision(key.pk, *args, attempt=key.attempt, by=by, reason=reason, using=key._state.db)
        except NotResolvable:
            refused += 1
        else:
            resolved += 1
    return Resolved(resolved=resolved, refused=refused)
