"""What a person may decide about a key that is stuck or in doubt. The admin's buttons, and yours.

Each function is one transaction. It first locks the key's row, under the condition that the key has failed, or that its
lease is over by the database's clock, or that the key is in progress without a lease. It changes the row so that a
worker that wakes up later fails at its fence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.utils import timezone

from ..engine.conf import resolve
from ..engine.protocol.outcomes import Row
from ..engine.protocol.snapshots import Snapshot
from ..engine.stores import Store, alias_for, store_for
from ..exceptions import NotResolvable
from .decisions import Decision, doubts_of, with_decision


def release_for_retry(row_id: int, *, attempt: int, by: str = "", reason: str = "", using: str | None = None) -> None:
    """Let the next retry run, and make the steps in doubt again: calls with the same derived keys.

    Do this if these steps did not happen and their worker is dead, or if making them again does no harm. Of a key in
    progress without a lease, everything runs again: first undo what its work has committed. Steps that have a result
    keep it. One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        attempt: the attempt that the decision is about: the one that the person has seen.
        by, reason: who decides, and why. Kept with the key: see `maintenance.decisions`.
        using: database alias; default: the write alias of the key table.

    Raises:
        NotResolvable: if a worker holds a live lease, if the key is completed or deleted, or if its attempt has
            changed. Nothing was changed.
    """
    made = Decision(action="release", at=_now(), by=by, reason=reason, attempt=attempt)
    _resolve(row_id, made, using, lambda store, row: store.forget_doubts(row.id))


def record_outcome(
    row_id: int, step: str, value: Any, *, attempt: int, by: str = "", reason: str = "", using: str | None = None
) -> None:
    """Give a step in doubt the result that the books show. The next retry goes on from there.

    One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        step: the name of the call, or of the write.
        value: what the step would have returned, as JSON.
        attempt: the attempt that the decision is about: the one that the person has seen.
        by, reason: who decides, and why. Kept with the key: see `maintenance.decisions`.
        using: database alias; default: the write alias of the key table.

    Raises:
        NotResolvable: as for `release_for_retry`, and if the step is not in doubt. Nothing was changed.
        TypeError: if the value is not JSON.
        ValueError: if a number of the value is not JSON: infinite, or not a number.
    """
    result = json.dumps({"value": value}, cls=DjangoJSONEncoder, allow_nan=False)

    def record(store: Store, row: Row) -> None:
        if not store.record_result(row, step, result):
            raise NotResolvable(f"The call {step!r} is not in doubt.")

    made = Decision(action="record", at=_now(), by=by, reason=reason, attempt=attempt, detail=step)
    _resolve(row_id, made, using, record)


def close_with(
    row_id: int, snapshot: Snapshot, *, attempt: int, by: str = "", reason: str = "", using: str | None = None
) -> None:
    """Complete the key with this response: retries get it, and nothing runs again.

    One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        snapshot: status 200 to 499, headers and body. It is kept for the project's default `ttl` from now on.
        attempt: the attempt that the decision is about: the one that the person has seen.
        by, reason: who decides, and why. Kept with the key: see `maintenance.decisions`.
        using: database alias; default: the write alias of the key table.

    Raises:
        NotResolvable: as for `release_for_retry`. Nothing was changed.
        ValueError: for a status that is not 200 to 499.
    """
    if not 200 <= snapshot.status_code < 500:
        raise ValueError(f"status {snapshot.status_code} is no final answer: give 200 to 499.")
    detail = str(snapshot.status_code)
    made = Decision(action="answer", at=_now(), by=by, reason=reason, attempt=attempt, detail=detail)
    _resolve(row_id, made, using, lambda store, row: store.close(row, snapshot))


def _now() -> str:
    return timezone.now().isoformat(timespec="seconds")


def _resolve(row_id: int, made: Decision, using: str | None, decide: Callable[[Store, Row], Any]) -> None:
    store = store_for(alias_for(using))
    with transaction.atomic(using=store.alias):
        locked = store.lock_resolvable(row_id, made.attempt)
        if locked is None:
            raise NotResolvable(
                "Nothing was changed: a worker holds a live lease on this key, the key is completed or deleted, or "
                "another attempt or decision came first. Look again."
            )
        row, trail = locked
        made = replace(made, steps=doubts_of(row.id, store.alias, row))
        store.set_failed(row, resolve().ttl_seconds, with_decision(row, trail, made))
        decide(store, row)
