"""What a person may decide about a key that is stuck or in doubt. The admin's actions, and yours.

Each function is one transaction that locks the key's row first, under the condition that nobody works on it: it has
failed, or its lease is over, by the database's clock. It leaves the row so that a worker who wakes up later finds its
fence gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from ..engine.conf import resolve
from ..engine.protocol.snapshots import Snapshot
from ..engine.stores import Store, alias_for, store_for
from ..exceptions import NotResolvable


def release_for_retry(row_id: int, *, attempt: int, using: str | None = None) -> None:
    """Let the next retry run, and make its calls in doubt again with the same derived keys.

    For whoever knows that these calls did not happen and that their worker is dead, or that making them again does no
    harm. Steps that have a result keep it.

    row_id: primary key of the `IdempotencyKey`.
    attempt: the attempt that the decision is about: what the person has seen.
    using: database alias; default: the write alias of the key table.

    Raises `NotResolvable` and changes nothing if a live lease is held, if the key is completed or gone, or if somebody
    has worked on it meanwhile.
    """
    _resolve(row_id, attempt, using, lambda store: store.forget_doubts(row_id))


def record_outcome(row_id: int, step: str, value: Any, *, attempt: int, using: str | None = None) -> None:
    """Give a call in doubt its result: what the gateway's books say. The next retry goes on from there.

    step: the call's name.
    value: JSON, what the call would have returned.

    Otherwise as `release_for_retry`; raises `NotResolvable` also if the step is not in doubt, TypeError or ValueError
    for what is not JSON.
    """
    result = json.dumps({"value": value}, cls=DjangoJSONEncoder, allow_nan=False)

    def record(store: Store) -> None:
        if not store.finish_call(row_id, step, result):
            raise NotResolvable(f"The call {step!r} is not in doubt.")

    _resolve(row_id, attempt, using, record)


def close_with(row_id: int, snapshot: Snapshot, *, attempt: int, using: str | None = None) -> None:
    """Complete the key with this response: retries get it, and nothing runs again.

    snapshot: status 200 to 499, headers and body. It is kept for the project's default `ttl` from now on.

    Otherwise as `release_for_retry`; ValueError for a status that is no final answer.
    """
    if not 200 <= snapshot.status_code < 500:
        raise ValueError(f"status {snapshot.status_code} is no final answer: give 200 to 499.")
    _resolve(row_id, attempt, using, lambda store: store.close(row_id, snapshot))


def _resolve(row_id: int, attempt: int, using: str | None, decide: Callable[[Store], Any]) -> None:
    store = store_for(alias_for(using))
    with transaction.atomic(using=store.alias):
        if not store.lock_resolvable(row_id, attempt):
            raise NotResolvable(
                "Nothing was changed: a worker holds a live lease on this key, or it is completed, or gone, or "
                "somebody has worked on it since you looked. Look again."
            )
        store.set_failed(row_id, resolve().ttl_seconds)
        decide(store)
