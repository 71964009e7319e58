"""Delete what is stored about a caller, for support ("let this key run again") and for erasure requests.

# Note [What is never forgotten]
A key in progress belongs to a worker, so the key is kept. A failed key is kept if one of its calls has ended or is in
doubt, because the key stops the next retry from making the call a second time. A key in progress without a lease
belongs to no worker: the work of this key has ended its own transaction and then failed. Such a key is kept, too. All
these keys are counted as kept. With `include_unsettled`, only keys with a live lease are kept. So `include_unsettled`
deletes keys that are stuck, in doubt or half done, although these keys are the only trace of what was done.

A request in atomic mode that is still running has no visible row yet, because the request commits its key at its end.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Prefetch, Q, prefetch_related_objects

from ..engine.protocol.digests import has_controls, kept_scope
from ..engine.request.callers import acting_for
from ..engine.stores import alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.states import COMPLETED, FAILED_STATE, Clock, Seen
from ..models import IdempotencyKey, IdempotencyStep
from .lookups import find_key

if TYPE_CHECKING:
    from django.db.models import QuerySet

BATCH_SIZE = 5000
"""One query reads, and one transaction deletes, at most this number of rows. 5000 rows take about 10 ms."""
logger = logging.getLogger("django_idempotency")
SETTLED = (FAILED_STATE.name, COMPLETED.name)
"""The states of keys that can be deleted, because a retry does not need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was deleted, and what had to be kept. See Note [What is never forgotten].

    Attributes:
        deleted: how many keys were deleted.
        kept: how many keys of this scope were kept, because they are in progress, in doubt or half done.
    """

    deleted: int
    kept: int


def forget(
    scope: str,
    key: str,
    *,
    operation: str | None = None,
    using: str | None = None,
    include_unsettled: bool = False,
    dry_run: bool = False,
) -> Forgotten:
    """Delete what is stored under one key of one caller. The next request with that key runs again.

    Reads the unique index. Runs in one transaction, or in a savepoint inside an outer `atomic()`.

    Args:
        scope: the scope as the endpoint's `scope=` returns it, or as the admin shows it. For a user,
            `scope_of_user(user)`.
        key: the client's key, without quotes.
        operation: delete only the key of this operation ("POST orders/"); default: all operations.
        using: database alias; default: the write alias of the key table.
        include_unsettled: also delete a key that is stuck, in doubt or half done. The next request then makes the
            call a second time.
        dry_run: only count the keys that would be deleted and the keys that would be kept.

    Returns:
        How many keys were deleted, and how many had to be kept.

    Raises:
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    rows = find_key(key, using=using).filter(of_scope(scope), key=key)
    if operation is not None:
        rows = rows.filter(operation=operation)
    return _forget(rows, include_unsettled=include_unsettled, dry_run=dry_run)


def forget_scope(
    scope: str, *, using: str | None = None, include_unsettled: bool = False, dry_run: bool = False
) -> Forgotten:
    """Delete everything that is stored about one caller: keys, stored responses, steps.

    Reads the index of scopes, and locks only the deleted rows. A running request stores its key later, so first take
    away the caller's access. Each batch is deleted in one transaction, or in a savepoint inside an outer
    `atomic()`.

    Args:
        scope: the scope as the endpoint's `scope=` returns it, or as the admin shows it. For a user,
            `scope_of_user(user)`.
        using: database alias; default: the write alias of the key table.
        include_unsettled: also delete keys that are stuck, in doubt or half done, as for `forget`.
        dry_run: only count the keys that would be deleted and the keys that would be kept.

    Returns:
        How many keys were deleted, and how many had to be kept.

    Raises:
        DatabaseError: an error of the database. Keys that earlier batches deleted stay deleted.
    """
    rows = IdempotencyKey.objects.using(store_for(alias_for(using)).alias).filter(of_scope(scope))
    return _forget(rows, include_unsettled=include_unsettled, dry_run=dry_run)


def of_scope(scope: str) -> Q:
    """Return the condition for the keys of a scope. The scope can have the endpoint's form or the admin's form.

    For a user, the keys that OAuth clients have used in the name of the user are also found.
    """
    forms = {text for text in (scope, kept_scope(scope)) if not has_controls(text)}  # no row has control characters
    clients = Q(scope__startswith=acting_for(scope)) if scope.startswith("user:") and scope in forms else Q()
    return Q(scope__in=forms) | clients


def _forget(rows: QuerySet[IdempotencyKey], *, include_unsettled: bool, dry_run: bool) -> Forgotten:
    ids = rows.order_by("pk").values_list("pk", flat=True)
    last = deleted = kept = 0
    while batch := list(ids.filter(pk__gt=last)[:BATCH_SIZE]):
        gone = _delete(rows.db, batch, include_unsettled, dry_run)
        deleted, kept, last = deleted + gone, kept + len(batch) - gone, batch[-1]
    if not dry_run:
        logger.info("Idempotency keys of %s: %d forgotten, %d kept.", rows.db, deleted, kept)
    return Forgotten(deleted=deleted, kept=kept)


def _delete(alias: str, found: list[int], include_unsettled: bool, dry_run: bool) -> int:
    keys = IdempotencyKey.objects.using(alias).filter(pk__in=found)
    with transaction.atomic(using=alias):
        # The rows are locked before they are judged, because perhaps a retry of a failed key is starting right now and
        # has locked its row. On MariaDB, a plain SELECT sometimes shows old rows, but a locking SELECT shows the
        # committed rows.
        rows = list(locked(keys.only("status", "locked_until").annotate(now=Clock()), skip=True))
        steps = IdempotencyStep.objects.using(alias).defer("result", "error")
        prefetch_related_objects(rows, Prefetch("steps", locked(steps)))
        seen = [Seen(row, row.steps.all(), row.now) for row in rows]
        gone = [one.row.pk for one in seen if (not one.live if include_unsettled else one.state.name in SETTLED)]
        # CASCADE deletes the steps. Without only(), Django's collector would load every stored body.
        return len(gone) if dry_run else keys.filter(pk__in=gone).only("pk").delete()[1].get(keys.model._meta.label, 0)
