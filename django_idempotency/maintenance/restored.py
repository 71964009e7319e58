"""The restore of an old backup can lose the records of external calls. This module stores such records again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from ..engine.conf import resolve
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
    """Record that external calls were made under a key, so that no retry makes these calls again.

    If the function returns True, the key is half done. So the client's next retry, or a recovery, goes on after the
    recorded calls. If the key is missing in the table, the function creates the key again. If the key is in the table,
    the function stores only the results of calls that have no stored result. If you call the function a second time,
    the stored results do not change. The function runs in one transaction, or in a savepoint inside an outer
    `atomic()`.

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
    identity, ttl = identify(scope=scope, operation=operation, key=key), resolve().ttl_seconds
    wanted = ClaimRequest(identity=identity, fingerprint=None, ttl=ttl, lease=LEASE, repeats_calls=True, policy="hold")
    store = store_for(alias_for(using))
    with transaction.atomic(using=store.alias):
        claim = store.claim(wanted)
        if not isinstance(claim, Claimed):
            return False
        known = store.journal.steps(claim)
        for name, result in results.items():
            if name not in known:
                store.journal.start_call(claim, name, again=False)
            # If the step has a result already, `finish_call` changes nothing.
            store.journal.finish_call(claim, name, encode_step(result))
        store.journal.fail(claim, wanted, ENTERED)
    return True
