"""What a cleanup does about keys that are not completed: it fails the harmless ones, and gives up the oldest."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from django.db.models import Value
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from ..engine.conf import get_settings, resolve
from ..engine.events import report_given_up
from ..engine.stores.journal import locked
from ..engine.stores.states import CALLED, HARMLESS, STUCK, UNDECIDED, UNFINISHED, Clock, Later
from ..exceptions import NotDecryptable
from ..models import IdempotencyKey, IdempotencyStep
from .decisions import Decision, with_decision
from .resolution import DECIDED

if TYPE_CHECKING:
    from django.db.models import QuerySet

BY = "cleanup_idempotency_keys"
REASON = "The lease was over, and nothing outside had been called."


def fail_harmless(alias: str, batch_size: int, passed_over: set[int]) -> int:
    """Fail up to `batch_size` such keys in the current transaction, so that they alarm no more. How many it were.

    The next retry runs at once, and goes on from the steps that are kept. A worker that wakes up fails at its fence.
    Rows that another transaction holds are passed over, where the database can do that.

    Args:
        passed_over: ids of rows that this run has met and cannot fail. More are added.
    """
    keys = IdempotencyKey.objects.using(alias).filter(HARMLESS).order_by(*STUCK.order)
    rows = keys.only("key_hash", "scope_hash", "attempt", "decisions")
    failed = 0
    while failed < batch_size:
        wanted = batch_size - failed
        found = list(locked(rows.exclude(pk__in=passed_over), skip=True)[:wanted])
        for row in found:
            if fail_if_harmless(row):
                failed += 1
            else:
                passed_over.add(row.pk)
        if len(found) < wanted:
            break
    return failed


def fail_if_harmless(row: IdempotencyKey) -> bool:
    """Fail a key whose row is locked. False: it is not harmless, or its trail cannot be decrypted. It stays stuck then.

    It is kept for a `ttl` from now on, if the time that was set at the claim is over sooner.
    """
    at = timezone.now().isoformat(timespec="seconds")
    made = Decision(action="fail", at=at, by=BY, reason=REASON, attempt=row.attempt)
    try:
        trail = with_decision(row, row.decisions, made)
    except NotDecryptable:
        return False  # other keys need not wait for the missing encryption key
    # A worker may have started a call before its row was locked: the condition is asked again, under the lock.
    keys = IdempotencyKey.objects.using(row._state.db).filter(HARMLESS, pk=row.pk, attempt=row.attempt)
    same = keys.filter(key_hash=row.key_hash, scope_hash=row.scope_hash)
    changed = same.update(
        status=IdempotencyKey.Status.FAILED,
        locked_until=None,
        last_error=Coalesce("last_error", Value(DECIDED)),
        updated_at=Clock(),
        decisions=trail,
        expires_at=Greatest("expires_at", Later(resolve().ttl_seconds)),
    )
    return changed == 1


def overdue(alias: str) -> QuerySet[IdempotencyKey]:
    """Find keys that expired at least `UNSETTLED_TTL` ago, are not completed, and have no live lease. Oldest first.

    Reads the index on `expires_at`: after a cleanup, no other expired keys are left. Empty without the setting.
    """
    keys, kept_for = IdempotencyKey.objects.using(alias).order_by("expires_at"), get_settings().unsettled_seconds
    return keys.none() if kept_for is None else keys.filter(UNDECIDED, expires_at__lte=Later(-kept_for))


def give_up(alias: str, batch_size: int) -> int:
    """Delete up to `batch_size` overdue keys in the current transaction, and report each as an error after its commit.

    Rows that another transaction holds are passed over, where the database can do that.
    """
    fields = ("pk", "operation", "key_hash", "status", "attempt", "created_at", "resource_type", "resource_id")
    rows = list(locked(overdue(alias).only(*fields), skip=True)[:batch_size])
    steps = IdempotencyStep.objects.using(alias).filter(key__in=[row.pk for row in rows])
    doubts, done = _names(steps.filter(UNFINISHED)), _names(steps.filter(CALLED))
    steps.delete()
    IdempotencyKey.objects.using(alias).filter(pk__in=[row.pk for row in rows]).only("pk").delete()
    for row in rows:
        report_given_up(row, alias, in_doubt=doubts[row.pk], finished=done[row.pk])
    return len(rows)


def _names(steps: QuerySet[IdempotencyStep]) -> dict[int, list[str]]:
    """The names of these steps by their key, oldest first."""
    names: dict[int, list[str]] = defaultdict(list)
    for key, name in steps.order_by("pk").values_list("key", "name"):
        names[key].append(name)
    return names
