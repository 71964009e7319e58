"""What a person may decide about a key that is stuck, in doubt or half done. The admin's buttons, and yours.

Each decision is one transaction. It first locks the key's row, under the condition that the key has failed, or that its
lease is over by the database's clock, or that the key is in progress without a lease. It changes the row so that a
worker that wakes up later fails at its fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from ..engine.conf import resolve
from ..engine.execution.values import encode_step
from ..engine.protocol.outcomes import Snapshot
from ..engine.stores import alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.sealing import seal, seal_response, unseal
from ..engine.stores.states import UNDECIDED, Clock
from ..exceptions import NotResolvable
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import Decision, as_kept, recorded_steps, with_decision
from .facts import Facts

if TYPE_CHECKING:
    from django.db.models import QuerySet

DECIDED = "A decision ended this attempt."
"""The last error of a key without another one: every failed row has an error, for the partial index of failed rows."""


def release_for_retry(
    row_id: int,
    *,
    attempt: int,
    by: str = "",
    reason: str = "",
    using: str | None = None,
    seen: datetime | None = None,
    confirmed: bool = True,
) -> None:
    """Let the next retry run, and make the steps in doubt again: calls with the same derived keys.

    Do this if these steps did not happen and their worker is dead, or if making them again does no harm. Of a key in
    progress without a lease, everything runs again: first undo what its work has committed. Steps that have a result
    keep it. One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        attempt: the attempt that the decision is about: the one that the person has seen.
        by, reason: who decides, and why. Kept with the key: see `maintenance.decisions`.
        using: database alias; default: the write alias of the key table.
        seen: the key's `updated_at` when the person looked at the key. Then this decision is refused if another one
            came first. None: only the attempt is compared.
        confirmed: whether the person has said that what is in doubt did not happen. False: such keys are refused.

    Raises:
        NotResolvable: if a worker holds a live lease, if the key is completed or deleted, if it is no longer as it was
            seen, or if it needs a word that was not given. Nothing was changed.
        NotDecryptable: if the trail of decisions cannot be decrypted. Nothing was changed.
    """
    made = Decision(action="release", at=_now(), by=by, reason=reason, attempt=attempt)
    with _locked(row_id, made, seen, confirmed, using) as key:
        key.decide(made)
        key.steps.filter(finished_at=None).delete()


def record_outcome(
    row_id: int,
    step: str,
    value: Any,
    *,
    attempt: int,
    by: str = "",
    reason: str = "",
    using: str | None = None,
    seen: datetime | None = None,
    confirmed: bool = True,
) -> None:
    """Give a step in doubt the result that the books show. The next retry goes on from there.

    A result that a person has recorded can be corrected in the same way, until the key is completed. The trail of
    decisions keeps the replaced result. One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        step: the name of the call, or of the write.
        value: what the step would have returned: JSON, or a saved model instance.
        attempt, by, reason, using, seen, confirmed: as for `release_for_retry`. A record needs no word.

    Raises:
        NotResolvable: as for `release_for_retry`, and if the step is not in doubt and has a result that no person
            recorded. Nothing was changed.
        NotDecryptable: if the trail of decisions cannot be decrypted. Nothing was changed.
        ResultNotStorable: if the value is neither JSON nor a saved model instance, or longer than 1 MiB of JSON.
    """
    result = encode_step(value)
    made = Decision(action="record", at=_now(), by=by, reason=reason, attempt=attempt, detail=step)
    with _locked(row_id, made, seen, confirmed, using) as key:
        # Compared here: the database may ignore capitals, accents and spaces at the end. `seal` ignores nothing.
        named = next((found for found in key.facts.steps if found.name == step), None)
        corrects = named is not None and step in recorded_steps(key.row, key.row.decisions)
        if named is None or (named.finished_at is not None and not corrects):
            raise NotResolvable(f"The call {step!r} is not in doubt. Look again.")
        if named.finished_at is not None:
            made = replace(made, action="correct", replaced=unseal(key.row, "result", named.result, step))
        key.decide(made)
        finished = {} if named.finished_at else {"finished_at": Clock()}
        key.steps.filter(pk=named.pk).update(result=seal(key.row, "result", result, step), **finished)


def close_with(
    row_id: int,
    snapshot: Snapshot,
    *,
    attempt: int,
    by: str = "",
    reason: str = "",
    using: str | None = None,
    seen: datetime | None = None,
    confirmed: bool = True,
) -> None:
    """Complete the key with this response: retries get it, and nothing runs again.

    One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        row_id: primary key of the `IdempotencyKey`.
        snapshot: status 200 to 499, headers and body. It is kept for the project's default `ttl` from now
            on. A key that would expire later keeps its time.
        attempt, by, reason, using, seen: as for `release_for_retry`.
        confirmed: whether the person has said that what the finished calls did is settled: the order exists, or the
            money went back. False: keys with finished calls are refused.

    Raises:
        NotResolvable, NotDecryptable: as for `release_for_retry`. Nothing was changed.
        ValueError: for a status that is not 200 to 499.
    """
    if not 200 <= snapshot.status_code < 500:
        raise ValueError(f"status {snapshot.status_code} is no final answer: give 200 to 499.")
    made = Decision(action="answer", at=_now(), by=by, reason=reason, attempt=attempt, detail=str(snapshot.status_code))
    with _locked(row_id, made, seen, confirmed, using) as key:
        headers, body = seal_response(key.row, snapshot)
        answer = {"status_code": snapshot.status_code, "headers": headers, "body": body, "completed_at": Clock()}
        key.decide(made, status=IdempotencyKey.Status.COMPLETED, **answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What came of a decision about many keys.

    Attributes:
        resolved: how many keys were resolved.
        refused: how many had changed since they were read, have a worker with a live lease, or need a word.
    """

    resolved: int
    refused: int


def resolve_all(
    keys: Iterable[IdempotencyKey],
    decision: Callable[..., None],
    *args: Any,
    by: str = "",
    reason: str = "",
    confirmed: bool = True,
) -> Resolved:
    """Take the same decision about each of these keys: `resolve_all(in_doubt(), close_with, Snapshot(…))`.

    Decides about the rows as they were read, each at its attempt. A key that has changed since is refused. A queryset
    that was read already is not asked again: list it first, and exactly the listed keys are decided about.

    Each key is resolved in a transaction of its own (inside an outer `atomic()`: a savepoint). An error leaves the keys
    before it resolved.

    Args:
        keys: such as `stuck()` or `in_doubt().filter(operation="POST pay/")`, or a list of rows.
        decision: `release_for_retry`, `record_outcome` or `close_with`.
        args: what the decision needs: a step and its result, or a response.
        by, reason: who decides, and why. Kept with each key: see `maintenance.decisions`.
        confirmed: as the decision understands it.

    Returns:
        How many keys were resolved, and how many refused.

    Raises:
        ValueError, TypeError, NotDecryptable: as the decision does.
    """
    resolved = refused = 0
    for key in keys:
        seen = {"attempt": key.attempt, "seen": key.updated_at, "using": key._state.db}
        try:
            decision(key.pk, *args, **seen, by=by, reason=reason, confirmed=confirmed)
        except NotResolvable:
            refused += 1
        else:
            resolved += 1
    return Resolved(resolved=resolved, refused=refused)


def _now() -> str:
    return timezone.now().isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locked:
    """A key whose row this transaction has locked, with its steps."""

    facts: Facts
    alias: str

    @property
    def row(self) -> IdempotencyKey:
        return self.facts.row

    @property
    def steps(self) -> QuerySet[IdempotencyStep]:
        return IdempotencyStep.objects.using(self.alias).filter(key=self.row)

    def decide(self, made: Decision, **changes: Any) -> None:
        """Take the key away from its worker, and add the decision to the trail, with what is in doubt now.

        No fence of the attempt holds any more. The view may have a longer `ttl` than the project: a late retry must
        not find the key gone.
        """
        row, doubts = self.row, [as_kept(self.row, step) for step in self.facts.doubts]
        # By its hashes, too: an id alone may name several rows of a partitioned table, or another tenant's row.
        same = IdempotencyKey.objects.using(self.alias).filter(
            key_hash=row.key_hash, scope_hash=row.scope_hash, pk=row.pk
        )
        decided: dict[str, Any] = {
            "status": IdempotencyKey.Status.FAILED,
            "locked_until": None,
            "last_error": Coalesce("last_error", Value(DECIDED)),
            "updated_at": Clock(),
            "decisions": with_decision(row, row.decisions, replace(made, steps=doubts)),
            "expires_at": max(row.expires_at, self.facts.now + timedelta(seconds=resolve().ttl_seconds)),
        }
        same.update(**decided | changes)


@contextmanager
def _locked(
    row_id: int, made: Decision, seen: datetime | None, confirmed: bool, using: str | None
) -> Iterator[_Locked]:
    """Lock the key's row until the transaction ends, if it may be decided about and is as the person has seen it."""
    alias = store_for(alias_for(using)).alias
    keys = IdempotencyKey.objects.using(alias).defer("headers", "body").annotate(now=Clock())
    with transaction.atomic(using=alias):
        found = list(locked(keys.filter(UNDECIDED, pk=row_id, attempt=made.attempt))[:2])
        # Two: in a partitioned table, only a sequence makes ids unique.
        if len(found) != 1 or (seen is not None and found[0].updated_at != seen):
            raise NotResolvable(
                "Nothing was changed: a worker holds a live lease on this key, the key is completed or deleted, or "
                "another attempt or decision came first. Look again."
            )
        row = found[0]
        steps = list(locked(IdempotencyStep.objects.using(alias).filter(key=row_id).order_by("pk")))
        facts = Facts(row, steps, row.now)
        if not confirmed and facts.needs_word(made.action):
            raise NotResolvable("Nothing was changed: first look outside at what was called under this key.")
        yield _Locked(facts=facts, alias=alias)
