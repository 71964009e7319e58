"""If you restore a backup, the records of newer external calls are lost. This module stores these records again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from ..engine.conf import LEASED, resolve
from ..engine.execution.operation import encode_step
from ..engine.protocol.digests import identify
from ..engine.protocol.outcomes import Claimed, ClaimRequest
from ..engine.stores import alias_for, store_for

ENTERED = "The results of its calls were entered, such as after a restore."
"""The error text that is stored with a key whose results were entered."""
LEASE = 60
"""The lease in seconds. The lease never runs out, because the claim ends in the same transaction."""


def remember_calls(
    scope: str, operation: str, key: str, results: Mapping[str, Any], *, using: str | None = None
) -> bool:
    """Store the results of the external calls of a key, so that no retry makes these calls again.

    If the function returns True, the key is half done. Then the next retry or a recovery runs the work, but does not
    repeat the stored calls. If the table does not have the key, the function creates the key again. If the table
    already has the result of a call, the function does not change this result. So you can call the function a second
    time. The function runs in one transaction. If an outer `atomic()` block is open, the function runs in a savepoint.

    Args:
        scope: the scope as the endpoint's `scope=` returns it. For a user, `scope_of_user(user)`.
        operation: the operation's name, such as "POST pay/".
        key: the client's key, without quotes.
        results: for the name of each call, its result: JSON, or a saved model instance.
        using: database alias; default: the write alias of the key table.

    Returns:
        True if the results are stored now. False if the key is completed or at work, or a write is in doubt.

    Raises:
        ResultNotStorable: a result cannot be kept. Nothing was changed.
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    identity, ttl = identify(scope=scope, operation=operation, key=key), resolve(LEASED).ttl_seconds
    wanted = ClaimRequest(identity=identity, fingerprint=None, ttl=ttl, lease=LEASE, policy="hold", reconciles=True)
    store = store_for(alias_for(using))
    with transaction.atomic(using=store.alias):
        claim = store.claim(wanted)
        if not isinstance(claim, Claimed):
            return False
        known = store.journal.steps(claim)
        for name, result in results.items():
            step = known.get(name)
            if step is None:
                store.journal.start_call(claim, name, keyed=None)
            if step is None or not step.finished:
                store.journal.finish_call(claim, name, encode_step(result))
            elif step.result is None:
                store.journal.enter_lost(claim, name, encode_step(result))
        store.journal.fail(claim, wanted, ENTERED)
    return True
