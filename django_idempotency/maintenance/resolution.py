"""What a person may decide about a key that is stuck, in doubt or half done. The admin's buttons, and yours.

Each decision is about a row as the person has seen it, and is one transaction (inside an outer `atomic()`: a
savepoint). It first locks the key's row, under the condition that the key has failed, or that its lease is over by the
database's clock, or that the key is in progress without a lease. It changes the row so that a worker that wakes up
later fails at its fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Coalesce

from ..engine.conf import resolve
from ..engine.execution.operation import encode_step
from ..engine.protocol.outcomes import Snapshot
from ..engine.stores.journal import locked
from ..engine.stores.sealing import seal, seal_response, unseal
from ..engine.stores.states import UNDECIDED, Clock
from ..exceptions import NotResolvable
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import Decision, as_kept, with_decision
from .facts import Facts
from .lookups import same_row

if TYPE_CHECKING:
    from django.db.models import QuerySet

DECIDED = "A decision ended this attempt."
"""The last error of a key without another one: every failed row has an error, for the partial index of failed rows."""


def release_for_retry(key: IdempotencyKey, *, by: str = "", reason: str = "", confirmed: bool = True) -> None:
    """Let the next retry run, and make the steps in doubt again: calls with the same derived keys.

    Do this if these steps did not happen and their worker is dead, or if making them again does no harm. Of a key in
    progress without a lease, everything runs again: first undo what its work has committed. Steps that have a result
    keep it. One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        key: the row as the person has seen it.
        by, reason: who decides, and why. Kept with the key: see `maintenance.decisions`.
        confirmed: whether the person has said that what is in doubt did not happen. False: such keys are refused.

    Raises:
        NotResolvable: if a worker holds a live lease, if the key is completed or deleted, if an attempt or a decision
            has changed it since it was read, or if it needs a word that was not given. Nothing was changed.
        NotDecryptable: if the trail of decisions cannot be decrypted. Nothing was changed.
    """
    with _locked(key, "release", confirmed) as facts:
        _decide(facts, Decision(action="release", by=by, reason=reason, attempt=key.attempt))
        _steps(facts.row).filter(finished_at=None).delete()


def record_outcome(
    key: IdempotencyKey, step: str, value: Any, *, by: str = "", reason: str = "", confirmed: bool = True
) -> None:
    """Give a step in doubt the result that the books show. The next retry goes on from there.

    A result that a person has recorded can be corrected in the same way, until the key is completed. The trail of
    decisions keeps the replaced result. One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        key: the row as the person has seen it.
        step: the name of the call, or of the write.
        value: what the step would have returned: JSON, or a saved model instance.
        by, reason, confirmed: as for `release_for_retry`. A record needs no word.

    Raises:
        NotResolvable: as for `release_for_retry`, and if the step is not in doubt and has a result that no person
            recorded. Nothing was changed.
        NotDecryptable: if the trail of decisions cannot be decrypted. Nothing was changed.
        ResultNotStorable: if the value is neither JSON nor a saved model instance, or longer than 1 MiB of JSON.
    """
    result = encode_step(value)
    made = Decision(action="record", by=by, reason=reason, attempt=key.attempt, detail=step)
    with _locked(key, "record", confirmed) as facts:
        # Compared here: the database may ignore capitals, accents and spaces at the end. `seal` ignores nothing.
        if step not in facts.recordable:
            raise NotResolvable(f"The call {step!r} is not in doubt. Look again.")
        named = next(found for found in facts.steps if found.name == step)
        if named.finished_at is not None:
            made = replace(made, action="correct", replaced=unseal(key, "result", named.result, step))
        _decide(facts, made)
        finished = {} if named.finished_at else {"finished_at": Clock()}
        _steps(facts.row).filter(pk=named.pk).update(result=seal(key, "result", result, step), **finished)


def close_with(
    key: IdempotencyKey, snapshot: Snapshot, *, by: str = "", reason: str = "", confirmed: bool = True
) -> None:
    """Complete the key with this response: retries get it, and nothing runs again.

    One transaction (inside an outer `atomic()`: a savepoint).

    Args:
        key: the row as the person has seen it.
        snapshot: status 200 to 499, headers and body. It is kept for the project's default `ttl` from now
            on. A key that would expire later keeps its time.
        by, reason: as for `release_for_retry`.
        confirmed: whether the person has said that the calls are settled: the order exists, or no money is kept.
            False: keys with finished calls, or with a doubt, are refused.

    Raises:
        NotResolvable, NotDecryptable: as for `release_for_retry`. Nothing was changed.
        ValueError: for a status that is not 200 to 499.
    """
    if not 200 <= snapshot.status_code < 500:
        raise ValueError(f"status {snapshot.status_code} is no final answer: give 200 to 499.")
    made = Decision(action="answer", by=by, reason=reason, attempt=key.attempt, detail=str(snapshot.status_code))
    with _locked(key, "answer", confirmed) as facts:
        headers, body = seal_response(facts.row, snapshot)
        answer = {"status_code": snapshot.status_code, "headers": headers, "body": body, "completed_at": Clock()}
        _decide(facts, made, status=IdempotencyKey.Status.COMPLETED, **answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What came of a decision about many keys.

    Attributes:
        resolved: how many keys were resolved.
        refused: how many had changed since they were read, have a worker with a live lease, or need a word.
    """

    resolved: int
    refused: int


def resolve_all(keys: Iterable[IdempotencyKey], decision: Callable[..., None], *args: Any, **words: Any) -> Resolved:
    """Take the same decision about each of these keys: `resolve_all(in_doubt(), close_with, Snapshot(…))`.

    Decides about the rows as they were read. A key that has changed since is refused. A queryset that was read already
    is not asked again: list it first, and exactly the listed keys are decided about.

    Each key is resolved in a transaction of its own (inside an outer `atomic()`: a savepoint). An error leaves the keys
    before it resolved.

    Args:
        keys: such as `stuck()` or `in_doubt().filter(operation="POST pay/")`, or a list of rows.
        decision: `release_for_retry`, `record_outcome` or `close_with`.
        args: what the decision needs: a step and its result, or a response.
        words: `by`, `reason` and `confirmed`, as the decision understands them.

    Returns:
        How many keys were resolved, and how many refused.

    Raises:
        ValueError, TypeError, NotDecryptable: as the decision does.
    """
    resolved = refused = 0
    for key in keys:
        try:
            decision(key, *args, **words)
        except NotResolvable:
            refused += 1
        else:
            resolved += 1
    return Resolved(resolved=resolved, refused=refused)


@contextmanager
def _locked(key: IdempotencyKey, action: str, confirmed: bool) -> Iterator[Facts]:
    """Lock the key's row until the transaction ends, if it may be decided about and is as the person has seen it."""
    rows = same_row(key).defer("headers", "body").annotate(now=Clock())
    with transaction.atomic(using=rows.db):
        row = locked(rows.filter(UNDECIDED, attempt=key.attempt)).first()
        if row is None or row.updated_at != key.updated_at:
            raise NotResolvable(
                "Nothing was changed: a worker holds a live lease on this key, the key is completed or deleted, or "
                "another attempt or decision came first. Look again."
            )
        facts = Facts(row, list(locked(_steps(row).order_by("pk"))), row.now)
        if not confirmed and facts.needs_word(action):
            raise NotResolvable("Nothing was changed: first look outside at what was called under this key.")
        yield facts


def _decide(facts: Facts, made: Decision, **changes: Any) -> None:
    """Take the key away from its worker, and add the decision to the trail, with what is in doubt now.

    No fence of the attempt holds any more. The view may have a longer `ttl` than the project: a late retry must not
    find the key gone.
    """
    row, doubts = facts.row, [as_kept(facts.row, step) for step in facts.doubts]
    decided: dict[str, Any] = {
        "status": IdempotencyKey.Status.FAILED,
        "locked_until": None,
        "last_error": Coalesce("last_error", Value(DECIDED)),
        "updated_at": Clock(),
        "decisions": with_decision(row, replace(made, steps=doubts)),
        "expires_at": max(row.expires_at, facts.now + timedelta(seconds=resolve().ttl_seconds)),
    }
    same_row(row).update(**decided | changes)


def _steps(row: IdempotencyKey) -> QuerySet[IdempotencyStep]:
    """On the row's own database, never on a replica."""
    return IdempotencyStep.objects.using(row._state.db).filter(key=row)
