"""Delete what is stored about a caller.

`forget` deletes one key, so that the next request with that key runs. `forget_scope` deletes everything, for example
when someone wants their personal data erased.

# Note [What is never forgotten]
`forget` and `forget_scope` do not delete a key that is in progress, because a worker may be processing it. They also
keep a failed key that has a finished call or a step in doubt: if the key were deleted, the next retry would run that
call or step again. A key that is in progress but has no lease is kept because some of its work may have been
committed: the code ended its own transaction and was then interrupted. `Forgotten.kept` counts all of these. With
`include_unsettled`, keys that are stuck, in doubt or half done are also deleted; only those with a live lease or a
locked row are kept. After that, the database has no record of the calls that were made under a deleted key.

In atomic mode a key is committed at the end of the request, so `forget` cannot find it while the request is running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from django.db.models import Q

from ..engine.conf import backend_for
from ..engine.protocol.digests import has_controls, stored_scope
from ..engine.protocol.stored_key import Status
from ..engine.request.callers import acting_for
from ..engine.stores import alias_for, store_for
from ..engine.stores.journal import locked
from ..engine.stores.states import COMPLETED, FAILED_STATE, Clock, Seen
from ..engine.stores.transactions import atomically
from ..models import IdempotencyKey
from .elsewhere import name_in_backend, read
from .lookups import find_key

if TYPE_CHECKING:
    from django.db.models import QuerySet

BATCH_SIZE = 5000
"""Rows per query and per transaction. PostgreSQL deletes 5000 in about 10 ms."""
logger = logging.getLogger("django_idempotency")
SETTLED = (FAILED_STATE.name, COMPLETED.name)
"""The states in which no retry needs the key, so the key can be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """How many keys were deleted, and how many were kept for the reasons given in Note [What is never forgotten].

    Attributes:
        deleted: how many keys were deleted.
        kept: how many keys were kept.
    """

    deleted: int
    kept: int


def forget(
    scope: str,
    key: str,
    *,
    operation: str | None = None,
    using: str | None = None,
    backend: str | None = None,
    include_unsettled: bool = False,
    dry_run: bool = False,
) -> Forgotten:
    """Delete what is stored under one key of one caller. The next request with that key runs as a new request.

    It looks the key up in the unique index, and runs in one transaction, or in a savepoint inside an outer `atomic()`
    block.

    Args:
        scope: the scope as the endpoint's `scope=` returns it, or as the admin shows it. For a user,
            `scope_of_user(user)`.
        key: the client's key, without quotes.
        operation: delete only the key of this operation ("POST orders/"); default: all operations.
        using: database alias; default: the write alias of the key table.
        backend: a name in `BACKENDS`, if the key is stored there and not in the table. `operation` is then required.
        include_unsettled: also delete a key that is stuck, in doubt or half done. The next request then makes the call
            a second time.
        dry_run: only count what would be deleted and kept.

    Returns:
        How many keys were deleted, and how many had to be kept.

    Raises:
        IdempotencyConfigurationError: the alias or the backend is unknown, or the database has no store.
    """
    if backend is not None:
        name = name_in_backend(scope, operation, key)
        return _forget_in_backend(backend, name, include_unsettled=include_unsettled, dry_run=dry_run)
    rows = find_key(key, using=using).filter(of_scope(scope), key=key)
    if operation is not None:
        rows = rows.filter(operation=operation)
    return _forget(rows, include_unsettled=include_unsettled, dry_run=dry_run)


def forget_scope(
    scope: str,
    *,
    using: str | None = None,
    include_unsettled: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Forgotten:
    """Delete everything that is stored about one caller: keys, stored responses, steps.

    Revoke the caller's access first: a request that is still running can store its key after the deletion. The query
    uses the index on `scope` and locks only the rows of this scope. Each batch runs in one transaction, or in a
    savepoint inside an outer `atomic()` block.

    Args:
        scope: the scope as the endpoint's `scope=` returns it, or as the admin shows it. For a user,
            `scope_of_user(user)`.
        using: database alias; default: the write alias of the key table.
        include_unsettled: also delete keys that are stuck, in doubt or half done, as in `forget`.
        dry_run: only count what would be deleted and kept.
        progress: called after each batch with the number of keys examined so far.

    Returns:
        How many keys were deleted, and how many had to be kept.

    Raises:
        DatabaseError: the database reported an error. Keys deleted by earlier batches stay deleted.
    """
    rows = IdempotencyKey.objects.using(store_for(alias_for(using)).alias).filter(of_scope(scope))
    return _forget(rows, include_unsettled=include_unsettled, dry_run=dry_run, progress=progress)


def of_scope(scope: str) -> Q:
    """Return the condition for a scope's keys. The scope can be what `scope=` returns or what the admin shows.

    For a user, the condition also matches the keys of OAuth clients that act on the user's behalf.
    """
    # No stored scope contains control characters.
    forms = {text for text in (scope, stored_scope(scope)) if not has_controls(text)}
    if not scope.startswith("user:"):
        return Q(scope__in=forms)
    prefix = acting_for(scope)
    # The column compares bytes on every database, so a range finds the prefix by the index. With LIKE, SQLite would
    # ignore case, and MySQL and MariaDB would read the whole table. "," is the byte after "+", which ends the prefix.
    return Q(scope__in=forms) | Q(scope__gte=prefix, scope__lt=prefix.removesuffix("+") + ",")


def _forget_in_backend(backend: str, name: str, *, include_unsettled: bool, dry_run: bool) -> Forgotten:
    value, stored = read(backend, name)
    if stored is None:
        return Forgotten(deleted=0, kept=0)
    gone = stored.status is Status.COMPLETED or include_unsettled
    if gone and not dry_run:
        gone = backend_for(backend).swap(name, value, None, 0) in (value, None)
        logger.info("Idempotency keys of backend %s: %d forgotten, %d kept.", backend, gone, not gone)
    return Forgotten(deleted=int(gone), kept=int(not gone))


def _forget(
    rows: QuerySet[IdempotencyKey],
    *,
    include_unsettled: bool,
    dry_run: bool,
    progress: Callable[[int], None] = lambda done: None,
) -> Forgotten:
    ids = rows.order_by("pk").values_list("pk", flat=True)
    last = deleted = kept = 0
    while batch := list(ids.filter(pk__gt=last)[:BATCH_SIZE]):
        gone = atomically(rows.db, partial(_delete, rows.filter(pk__in=batch), include_unsettled, dry_run))
        deleted, kept, last = deleted + gone, kept + len(batch) - gone, batch[-1]
        progress(deleted + kept)
    if not dry_run:
        logger.info("Idempotency keys of %s: %d forgotten, %d kept.", rows.db, deleted, kept)
    return Forgotten(deleted=deleted, kept=kept)


def _delete(rows: QuerySet[IdempotencyKey], include_unsettled: bool, dry_run: bool) -> int:
    # The rows are locked before their states are examined. Rows that are already locked are skipped, because
    # another request may be starting a new attempt.
    needed = ("policy", "status", "locked_until", "unknown", "effects", "key_hash", "scope_hash")
    seen = [Seen(row, row.now) for row in locked(rows.only(*needed).annotate(now=Clock()), skip=True)]
    gone = [one.row for one in seen if (not one.live if include_unsettled else one.state.name in SETTLED)]
    if dry_run:
        return len(gone)
    return store_for(rows.db).delete([(row.pk, row.key_hash, row.scope_hash, row.policy) for row in gone])
