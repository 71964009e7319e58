"""Let a person resolve a key that is stuck, in doubt or half done. The admin calls these functions, and your own
code can also call them.

A decision locks the key's row in a transaction, or in a savepoint if it is made inside an `atomic()` block. A
decision is possible if the key has failed, if its lease has expired by the database's clock, or if the key is in
progress without a lease. It is refused if the row has changed since the person read it. A decision changes the row, so
the fence stops an old worker that wakes up later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import Value
from django.db.models.functions import Coalesce

from ..engine.conf import LEASED, resolve
from ..engine.execution.results import encode_step
from ..engine.protocol.outcomes import Snapshot
from ..engine.stores.journal import locked, steps_of
from ..engine.stores.sealing import seal, seal_response
from ..engine.stores.states import UNDECIDED, UNFINISHED, Clock
from ..engine.stores.transactions import atomically
from ..exceptions import NotResolvable
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import Decision, readable, step_entry, with_decision
from .facts import Facts, Kind, with_lost
from .lookups import same_row, version_of

if TYPE_CHECKING:
    from django.db.models import QuerySet

CLOSING = range(200, 500)
"""The statuses with which a person can close a key."""
DECIDED = "A decision ended this attempt."
"""The error text for a key that has no other. The index on failed keys needs an error text."""


def release_for_retry(key: IdempotencyKey, *, by: str = "", reason: str = "", confirmed: bool = True) -> None:
    """Let the next retry run. It repeats the steps in doubt, and uses the derived keys that the view asks for.

    A step in doubt can then run twice, so first make sure that it did not take effect and that its worker is dead. If
    the key is in progress without a lease, the next retry runs all of the work again, so first undo any writes that the
    work has committed. Steps that have a result are not repeated. The function runs in a transaction, or in a savepoint
    if it is called inside an `atomic()` block.

    Args:
        key: the row as the person saw it.
        by, reason: who decides, and why. Both are kept with the key; see `maintenance.decisions`.
        confirmed: True if the person has said that the steps in doubt did not take effect. With False, a key that needs
            this confirmation is refused.

    Raises:
        NotResolvable: a worker holds a live lease, the key is completed or deleted, an attempt or a decision has
            changed it since it was read, or a required confirmation is missing. Nothing was changed.
        NotDecryptable: the trail of decisions was changed in the database. Nothing was changed.
    """

    def release(facts: Facts) -> None:
        _settle(facts, Decision(action="release", by=by, reason=reason, attempt=key.attempt), unknown=0)
        _steps(facts.row).filter(UNFINISHED).delete()

    _locked(key, "release", confirmed, release)


def record_outcome(
    key: IdempotencyKey, step: str, value: Any, *, by: str = "", reason: str = "", confirmed: bool = True
) -> None:
    """Store the result of a step in doubt, or of a call whose value was lost. The next retry continues after that step.

    Look up the result elsewhere, for example in the called service's records. Until the key is completed, calling this
    again corrects a recorded result; the old one stays in the trail of decisions. The function runs in a transaction,
    or in a savepoint if it is called inside an `atomic()` block.

    Args:
        key: the row as the person saw it.
        step: the name of the call, or of the write.
        value: what the step would have returned: JSON, or a saved model instance.
        by, reason, confirmed: see `release_for_retry`. Recording a result needs no confirmation.

    Raises:
        NotResolvable: see `release_for_retry`. It is also raised if there is no such step, or if the step already has a
            result that no person recorded. Nothing was changed.
        NotDecryptable: the trail of decisions was changed in the database. Nothing was changed.
        ResultNotStorable: the value is neither JSON nor a saved model instance, or its JSON is longer than 1 MiB.
    """
    result = encode_step(value)

    def record(facts: Facts) -> None:
        made = Decision(action="record", by=by, reason=reason, attempt=key.attempt, detail=step)
        # The name is compared in Python: some databases ignore accents, case and trailing spaces, and an encrypted
        # result can be decrypted only with the exact name of its step.
        if step not in facts.recordable:
            raise NotResolvable(f"The call {step!r} is not in doubt. Look again.")
        named = next(each for each in facts.steps if each.name == step)
        counts, finished = {}, {}
        if named.finished_at is None:
            counts = {"unknown": facts.row.unknown - 1, "effects": facts.row.effects + (named.kind == Kind.CALL)}
            finished = {"finished_at": Clock()}
        elif named.result is not None:
            made = replace(made, action="correct", replaced=readable(key, "result", named.result, step))
        _settle(facts, made, **counts)
        _steps(facts.row).filter(pk=named.pk).update(result=seal(key, "result", result, step), **finished)

    _locked(key, "record", confirmed, record)


def close_with(
    key: IdempotencyKey, snapshot: Snapshot, *, by: str = "", reason: str = "", confirmed: bool = True
) -> None:
    """Complete the key with a response. Retries get this response, and the work does not run again.

    It runs in a transaction, or in a savepoint if it is called inside an `atomic()` block.

    Args:
        key: the row as the person saw it.
        snapshot: the status (200 to 499), headers and body. The response is kept for the project's default `ttl`,
            counted from now, or until the key's own expiry if that is later.
        by, reason: see `release_for_retry`.
        confirmed: True if the person has said that the calls are settled: the order exists, or no money is kept. With
            False, keys that are in doubt or half done are refused.

    Raises:
        NotResolvable, NotDecryptable: see `release_for_retry`. Nothing was changed.
        ValueError: the status is not from 200 to 499.
    """
    refuse_unfinal(snapshot.status_code, "status")
    made = Decision(action="answer", by=by, reason=reason, attempt=key.attempt, detail=str(snapshot.status_code))

    def answer(facts: Facts) -> None:
        headers, body = seal_response(facts.row, snapshot)
        stored = {"status_code": snapshot.status_code, "headers": headers, "body": body, "completed_at": Clock()}
        _settle(facts, made, status=IdempotencyKey.Status.COMPLETED, **stored)

    _locked(key, "answer", confirmed, answer)


def refuse_unfinal(status: int, name: str) -> None:
    """Raise `ValueError` unless a key can be closed with this status. The message calls the status `name`."""
    if status not in CLOSING:
        raise ValueError(f"{name} {status} is not a final answer: pass one from {CLOSING[0]} to {CLOSING[-1]}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """How many keys `resolve_all` resolved, and how many it refused.

    Attributes:
        resolved: how many keys were resolved.
        refused: how many keys were refused, for example because they had changed since they were read, were held by a
            worker with a live lease, or needed a confirmation.
    """

    resolved: int
    refused: int


def resolve_all(keys: Iterable[IdempotencyKey], decision: Callable[..., None], *args: Any, **words: Any) -> Resolved:
    """Apply one decision to all the given keys, for example `resolve_all(in_doubt(), close_with, Snapshot(…))`.

    Keys whose rows have changed since they were read are refused. An evaluated queryset doesn't query the database
    again, so you can print its keys first and then resolve exactly the same ones. Each decision runs in its own
    transaction, or in a savepoint if it is made inside an `atomic()` block; if an error ends the run, the decisions
    made before it are kept.

    Args:
        keys: a queryset, such as `stuck()` or `in_doubt().filter(operation="POST pay/")`, or a list of rows.
        decision: `release_for_retry`, `record_outcome` or `close_with`.
        args: the decision's further arguments: a step and its result, or a response.
        words: the decision's `by`, `reason` and `confirmed`.

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


def _locked(key: IdempotencyKey, action: str, confirmed: bool, settle: Callable[[Facts], None]) -> None:
    """Lock the row, and call `settle` with the key's facts in the same transaction.

    Raises `NotResolvable` if the row has changed.
    """
    rows, seen = same_row(key).defer("headers", "body").annotate(now=Clock()), version_of(key)

    def locked_and_settled() -> None:
        row = locked(rows.filter(UNDECIDED)).first()
        if row is None or version_of(row) != seen:
            raise NotResolvable(
                "Nothing was changed: a worker holds a live lease on this key, the key is completed or deleted, or "
                "another attempt or decision came first. Look again."
            )
        facts = Facts(row, row.now, list(with_lost(locked(_steps(row)).order_by("pk"))))
        if not confirmed and facts.needs_word(action):
            raise NotResolvable("Nothing was changed: first ask the called service what happened under this key.")
        settle(facts)

    atomically(rows.db, locked_and_settled)


def _settle(facts: Facts, made: Decision, **changes: Any) -> None:
    """Store the decision with a copy of the steps in doubt, and fence off the old attempt.

    The key is kept for at least the project's `ttl`, counted from now, so that a retry can find it. It never expires
    earlier than it would have without the decision.
    """
    row, doubts = facts.row, [step_entry(facts.row, step) for step in facts.doubts]
    open_ = "status" not in changes and bool(changes.get("unknown", row.unknown) + changes.get("effects", row.effects))
    columns: dict[str, Any] = {
        "status": IdempotencyKey.Status.FAILED,
        "attention_at": Clock() if open_ else None,
        "locked_until": None,
        "last_error": Coalesce("last_error", Value(DECIDED)),
        "updated_at": Clock(),
        "decisions": with_decision(row, replace(made, steps=doubts, attempt=row.attempt)),
        "expires_at": max(row.expires_at, facts.now + timedelta(seconds=resolve(LEASED).ttl_seconds)),
    }
    same_row(row).update(**columns | changes)


def _steps(row: IdempotencyKey) -> QuerySet[IdempotencyStep]:
    return steps_of(str(row._state.db), row)  # the row's own alias, never a replica
