"""With this module, a person decides about a key that is stuck, in doubt or half done.

The admin calls the functions of this module. Your own code can also call `release_for_retry`, `record_outcome`,
`close_with` and `resolve_all`.

If the row was changed after the person has read the row, the decision is refused. A decision runs in one transaction.
If an outer `atomic()` block is open, the decision runs in a savepoint. A decision first locks the key's row. A decision
is possible if the key has failed, or if the lease of the key is over. A decision is also possible if the key is in
progress without a lease. The database's clock decides whether a lease is over. A decision changes the row. If an old
worker continues after the decision, the fence stops the old worker.
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

from ..engine.conf import LEASED, resolve
from ..engine.execution.operation import encode_step
from ..engine.protocol.outcomes import Snapshot
from ..engine.stores.journal import locked, steps_of
from ..engine.stores.sealing import seal, seal_response
from ..engine.stores.states import UNDECIDED, UNFINISHED, Clock
from ..exceptions import NotResolvable
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import Decision, readable, step_entry, with_decision
from .facts import Facts, Kind, with_lost
from .lookups import same_row

if TYPE_CHECKING:
    from django.db.models import QuerySet

DECIDED = "A decision ended this attempt."
"""The error text that is stored if a key has no other error. The index of failed rows needs an error text."""


def release_for_retry(key: IdempotencyKey, *, by: str = "", reason: str = "", confirmed: bool = True) -> None:
    """Allow the next retry. The retry repeats the steps in doubt, with the derived keys that the view asks for.

    So a step in doubt can run twice. Before you release a key, make sure that the step did not happen, and that the
    step's worker is dead. If the key is in progress without a lease, the next retry runs the whole work again. So first
    undo the writes that the work has already committed. The retry does not repeat a step that has a stored result. The
    function runs in one transaction. If an outer `atomic()` block is open, the function runs in a savepoint.

    Args:
        key: the row as the person has seen it.
        by, reason: who decides, and why. Both texts are kept with the key, see `maintenance.decisions`.
        confirmed: True if the person has said that the steps in doubt did not happen. With False, a key that needs this
            confirmation is refused.

    Raises:
        NotResolvable: a worker holds a live lease, the key is completed or deleted, an attempt or a decision has
            changed the key since it was read, or a needed confirmation is missing. Nothing was changed.
        NotDecryptable: the trail of decisions was changed in the database. Nothing was changed.
    """
    with _locked(key, "release", confirmed) as facts:
        _decide(facts, Decision(action="release", by=by, reason=reason, attempt=key.attempt), unknown=0)
        _steps(facts.row).filter(UNFINISHED).delete()


def record_outcome(
    key: IdempotencyKey, step: str, value: Any, *, by: str = "", reason: str = "", confirmed: bool = True
) -> None:
    """Store the result of a step in doubt, or of a call whose value was lost. The next retry continues after this step.

    The person finds the result, for example, in the records of the external service. To correct a recorded result, call
    this function again before the key is completed. The old result stays in the stored list of decisions. The function
    runs in one transaction. If an outer `atomic()` block is open, the function runs in a savepoint.

    Args:
        key: the row as the person has seen it.
        step: the name of the call, or of the write.
        value: what the step would have returned: JSON, or a saved model instance.
        by, reason, confirmed: see `release_for_retry`. A record needs no confirmation.

    Raises:
        NotResolvable: see `release_for_retry`. Also if the step has a result that no person has recorded. Nothing was
            changed.
        NotDecryptable: the trail of decisions was changed in the database. Nothing was changed.
        ResultNotStorable: the value is neither JSON nor a saved model instance, or longer than 1 MiB of JSON.
    """
    result = encode_step(value)
    made = Decision(action="record", by=by, reason=reason, attempt=key.attempt, detail=step)
    with _locked(key, "record", confirmed) as facts:
        # This code compares the names of steps in Python. Some databases treat two names as equal if they differ only
        # in accents, in upper and lower case, or in spaces at the end. But an encrypted result can be decrypted only
        # with the exact name of its step.
        if step not in facts.recordable:
            raise NotResolvable(f"The call {step!r} is not in doubt. Look again.")
        named = next(found for found in facts.steps if found.name == step)
        counts, finished = {}, {}
        if named.finished_at is None:
            counts = {"unknown": facts.row.unknown - 1, "effects": facts.row.effects + (named.kind == Kind.CALL)}
            finished = {"finished_at": Clock()}
        elif named.result is not None:
            made = replace(made, action="correct", replaced=readable(key, "result", named.result, step))
        _decide(facts, made, **counts)
        _steps(facts.row).filter(pk=named.pk).update(result=seal(key, "result", result, step), **finished)


def close_with(
    key: IdempotencyKey, snapshot: Snapshot, *, by: str = "", reason: str = "", confirmed: bool = True
) -> None:
    """Complete the key with a response. Retries get this response, and the work does not run again.

    The function runs in one transaction. If an outer `atomic()` block is open, the function runs in a savepoint.

    Args:
        key: the row as the person has seen it.
        snapshot: status 200 to 499, headers and body. The response is kept for the project's default `ttl` from now on,
            or until the key's own expiry if that is later.
        by, reason: see `release_for_retry`.
        confirmed: True if the person has said that the calls are settled: the order exists, or no money is kept. With
            False, keys with finished calls or a doubt are refused.

    Raises:
        NotResolvable, NotDecryptable: see `release_for_retry`. Nothing was changed.
        ValueError: the status is not from 200 to 499.
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
    """The result of `resolve_all`.

    Attributes:
        resolved: how many keys were resolved.
        refused: how many keys had changed since they were read, have a worker with a live lease, or need a
            confirmation.
    """

    resolved: int
    refused: int


def resolve_all(keys: Iterable[IdempotencyKey], decision: Callable[..., None], *args: Any, **words: Any) -> Resolved:
    """Apply one decision to all given keys, for example `resolve_all(in_doubt(), close_with, Snapshot(…))`.

    If another process has changed the row of a key after your code has read the row, the package refuses your decision
    about the key. If the argument `keys` is an evaluated queryset, the function does not run the query again. So you
    can first print the keys of a queryset, and then decide about exactly the same keys.

    Each key is resolved in its own transaction. If an outer `atomic()` block is open, each key is resolved in its own
    savepoint. If an error ends the function, the decisions before the error are kept.

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
    """Lock the key's row, and yield the facts about the key. The lock lasts until the transaction ends.

    Raises `NotResolvable` if no decision is possible or if the row has changed.
    """
    rows = same_row(key).defer("headers", "body").annotate(now=Clock())
    with transaction.atomic(using=rows.db):
        row = locked(rows.filter(UNDECIDED, attempt=key.attempt)).first()
        if row is None or row.updated_at != key.updated_at:
            raise NotResolvable(
                "Nothing was changed: a worker holds a live lease on this key, the key is completed or deleted, or "
                "another attempt or decision came first. Look again."
            )
        facts = Facts(row, row.now, list(with_lost(locked(_steps(row)).order_by("pk"))))
        if not confirmed and facts.needs_word(action):
            raise NotResolvable("Nothing was changed: first look outside at what was called under this key.")
        yield facts


def _decide(facts: Facts, made: Decision, **changes: Any) -> None:
    """Store the decision in the key's row. The audit trail stores the decision and a copy of the steps in doubt.

    After a decision, the fence refuses all writes of the old attempt. After the decision, the key is kept for the
    project's `ttl`, so that a retry can find the key. But a decision never moves the expiry to an earlier time.
    """
    row, doubts = facts.row, [step_entry(facts.row, step) for step in facts.doubts]
    open_ = "status" not in changes and bool(changes.get("unknown", row.unknown) + changes.get("effects", row.effects))
    decided: dict[str, Any] = {
        "status": IdempotencyKey.Status.FAILED,
        "attention_at": Clock() if open_ else None,
        "locked_until": None,
        "last_error": Coalesce("last_error", Value(DECIDED)),
        "updated_at": Clock(),
        "decisions": with_decision(row, replace(made, steps=doubts)),
        "expires_at": max(row.expires_at, facts.now + timedelta(seconds=resolve(LEASED).ttl_seconds)),
    }
    same_row(row).update(**decided | changes)


def _steps(row: IdempotencyKey) -> QuerySet[IdempotencyStep]:
    return steps_of(str(row._state.db), row)  # the row's own alias, never a replica
