"""What a person may decide about a key that is stuck or in doubt. The admin's buttons, and yours.

Each function is one transaction. It first locks the key's row, under the condition that the key has failed, or that its
lease is over by the database's clock, or that the key is in progress without a lease. It changes the row so that a
worker that wakes up later fails at its fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from ..engine.conf import resolve
from ..engine.execution.values import encode_step
from ..engine.protocol.outcomes import Row
from ..engine.protocol.snapshots import Snapshot
from ..engine.stores import Store, alias_for, store_for
from ..engine.stores.sealing import seal, unseal
from ..exceptions import NotResolvable
from ..models import IdempotencyStep
from .decisions import Decision, doubts_of, recorded_steps, with_decision


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
    with _locked(row_id, attempt, using) as key:
        key.keep(made)
        key.store.forget_doubts(row_id)


def record_outcome(
    row_id: int, step: str, value: Any, *, attempt: int, by: str = "", reason: str = "", using: str | None = None
) -> None:
    """Give a step in doubt the result that the books show. The next retry goes on from there.

    A result that a person has recorded can be corrected in the same way, until the key is completed. The trail of
    decisions keeps the replaced result. One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        step: the name of the call, or of the write.
        value: what the step would have returned: JSON, or a saved model instance.
        attempt: the attempt that the decision is about: the one that the person has seen.
        by, reason: who decides, and why. Kept with the key: see `maintenance.decisions`.
        using: database alias; default: the write alias of the key table.

    Raises:
        NotResolvable: as for `release_for_retry`, and if the step is not in doubt and has a result that no person
            recorded. Nothing was changed.
        ResultNotStorable: if the value is neither JSON nor a saved model instance, or longer than 1 MiB of JSON.
    """
    result = encode_step(value)
    made = Decision(action="record", at=_now(), by=by, reason=reason, attempt=attempt, detail=step)
    with _locked(row_id, attempt, using) as key:
        steps = IdempotencyStep.objects.using(key.store.alias).filter(key_id=row_id, name=step)
        # Compared here: the database may ignore capitals, accents and spaces at the end. `seal` ignores nothing.
        named = next((found for found in steps if found.name == step), None)
        replaced = key.recorded_result(named)
        if replaced is None:
            key.keep(made)
            if named is None or not key.store.record_result(key.row, step, result):
                raise NotResolvable(f"The call {step!r} is not in doubt.")
        else:
            key.keep(replace(made, action="correct", replaced=replaced))
            steps.update(result=seal(key.row, "result", result, step))


def close_with(
    row_id: int, snapshot: Snapshot, *, attempt: int, by: str = "", reason: str = "", using: str | None = None
) -> None:
    """Complete the key with this response: retries get it, and nothing runs again.

    One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        snapshot: status 200 to 499, headers and body. It is kept for the project's default `ttl` from now
            on. A key that would expire later keeps its time.
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
    with _locked(row_id, attempt, using) as key:
        key.keep(made)
        key.store.close(key.row, snapshot)


def _now() -> str:
    return timezone.now().isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locked:
    """A key whose row this transaction has locked, and the trail of decisions as it is stored."""

    store: Store
    row: Row
    trail: str | None

    def keep(self, made: Decision) -> None:
        """Take the key away from its worker, and add the decision to the trail, with what is in doubt now."""
        made = replace(made, steps=doubts_of(self.row.id, self.store.alias, self.row))
        self.store.set_failed(self.row, resolve().ttl_seconds, with_decision(self.row, self.trail, made))

    def recorded_result(self, step: IdempotencyStep | None) -> str | None:
        """Return the result of this finished step as it was kept, if a person has recorded it."""
        if step is None or step.name not in recorded_steps(self.row, self.trail):
            return None
        return unseal(self.row, "result", step.result, step.name)


@contextmanager
def _locked(row_id: int, attempt: int, using: str | None) -> Iterator[_Locked]:
    store = store_for(alias_for(using))
    with transaction.atomic(using=store.alias):
        found = store.lock_resolvable(row_id, attempt)
        if found is None:
            raise NotResolvable(
                "Nothing was changed: a worker holds a live lease on this key, the key is completed or deleted, or "
                "another attempt or decision came first. Look again."
            )
        row, trail = found
        yield _Locked(store=store, row=row, trail=trail)
