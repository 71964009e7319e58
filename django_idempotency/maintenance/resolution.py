"""The decisions about a key that is stuck, in doubt or half done. The admin or your own code can call them.

A decision is refused if the row has changed since the person has seen it. A decision runs in one transaction, or in a
savepoint inside an outer `atomic()`. A decision first locks the key's row. The key must be failed, or its lease must be
over by the database's clock, or the key must be in progress without a lease. Then the decision changes the row, so that
the fence stops a worker that wakes up later.
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
"""The error text that is stored if a key has no other error. The index of failed rows needs an error text."""


def release_for_retry(key: IdempotencyKey, *, by: str = "", reason: str = "", confirmed: bool = True) -> None:
    """Let the next retry run and repeat the steps in doubt. A repeated call gets its first derived key again.

    Release a key if the steps in doubt did not happen and their worker is dead, or if making the steps again does no
    harm. For a key in progress without a lease, the whole work runs again, so first undo what the work has committed.
    Steps with a result keep the result. Runs in one transaction, or in a savepoint inside an outer `atomic()`.

    Args:
        key: the row as the person has seen it.
        by, reason: who decides, and why. Both texts are kept with the key, see `maintenance.decisions`.
        confirmed: True if the person has said that the steps in doubt did not happen. With False, a key that needs this
            confirmation is refused.

    Raises:
        NotResolvable: a worker holds a live lease, the key is completed or deleted, an attempt or a decision has
            changed the key since it was read, or a needed confirmation is missing. Nothing was changed.
        NotDecryptable: the trail of decisions cannot be decrypted. Nothing was changed.
    """
    with _locked(key, "release", confirmed) as facts:
        _decide(facts, Decision(action="release", by=by, reason=reason, attempt=key.attempt))
        _steps(facts.row).filter(finished_at=None).delete()


def record_outcome(
    key: IdempotencyKey, step: str, value: Any, *, by: str = "", reason: str = "", confirmed: bool = True
) -> None:
    """Store the result that the books show for a step in doubt. The next retry goes on after this step.

    A result that a person has recorded can be corrected in the same way, until the key is completed. The trail of
    decisions keeps the replaced result. Runs in one transaction, or in a savepoint inside an outer `atomic()`.

    Args:
        key: the row as the person has seen it.
        step: the name of the call, or of the write.
        value: what the step would have returned: JSON, or a saved model instance.
        by, reason, confirmed: see `release_for_retry`. A record needs no confirmation.

    Raises:
        NotResolvable: see `release_for_retry`. Also if the step is not in doubt, unless a person has recorded its
            result before. Nothing was changed.
        NotDecryptable: the trail of decisions cannot be decrypted. Nothing was changed.
        ResultNotStorable: the value is neither JSON nor a saved model instance, or longer than 1 MiB of JSON.
    """
    result = encode_step(value)
    made = Decision(action="record", by=by, reason=reason, attempt=key.attempt, detail=step)
    with _locked(key, "record", confirmed) as facts:
        # The names of steps are compared in Python, because some databases ignore capital letters, accents and spaces
        # at the end. `seal` does not ignore these differences.
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
    """Complete the key with this response. Retries get the response, and nothing runs again.

    Runs in one transaction, or in a savepoint inside an outer `atomic()`.

    Args:
        key: the row as the person has seen it.
        snapshot: status 200 to 499, headers and body. The response is kept for the project's default `ttl` from now on,
            or until the key's own expiry if that is later.
        by, reason: see `release_for_retry`. confirmed: True if the person has said that the calls are settled: the
        order exists, or no money is kept. With False, keys with finished calls or a doubt are refused.

    Raises:
        NotResolvable, NotDecryptable: see `release_for_retry`. Nothing was changed. ValueError: the status is not from
        200 to 499.
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
    """The outcome of a decision about many keys.

    Attributes:
        resolved: how many keys were resolved.
        refused: how many keys had changed since they were read, have a worker with a live lease, or need a
            confirmation.
    """

    resolved: int
    refused: int


def resolve_all(keys: Iterable[IdempotencyKey], decision: Callable[..., None], *args: Any, **words: Any) -> Resolved:
    """Take one decision about all these keys, for example `resolve_all(in_doubt(), close_with, Snapshot(…))`.

    A key that has changed since it was read is refused. If a queryset was read already, it is not read again. So if you
    list a queryset first, the decision is about exactly the listed keys.

    Each key is resolved in its own transaction, or in a savepoint inside an outer `atomic()`. After an error, the keys
    before the error stay resolved.

    Args:
        keys: a queryset, such as `stuck()` or `in_doubt().filter(operation="POST pay/")`, or a list of rows.
        decision: `release_for_retry`, `record_outcome` or `close_with`.
        args: the arguments of the decision: a step and its result, or a response.
        words: `by`, `reason` and `confirmed` of the decision.

    Returns:
        How many keys were resolved, and how many were refused.

    Raises:
        ValueError, TypeError, NotDecryptable: see the decision.
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
    """Lock the key's row until the transaction ends, if a decision is possible and the row has not changed."""
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
    """Change the row so that its worker loses the key, and add the decision and the steps in doubt to the trail.

    After this change, the fence refuses all writes of the old attempt. If the view has a longer `ttl` than the project,
    the key keeps the longer time, so that a late retry still finds the key.
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
    """Return a query for the steps in the row's own database, never in a replica."""
    return IdempotencyStep.objects.using(row._state.db).filter(key=row)
