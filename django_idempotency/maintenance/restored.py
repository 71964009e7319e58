"""After restoring a backup, enter the results of external calls that were made after it was taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.conf import LEASED, resolve
from ..engine.execution.results import decode, encode_step
from ..engine.protocol.digests import identify_given
from ..engine.protocol.outcomes import Claimed, ClaimRequest
from ..engine.stores import alias_for, store_for
from ..engine.stores.journal import locked, steps_of
from ..engine.stores.sealing import unseal
from ..engine.stores.transactions import atomically
from ..models import IdempotencyKey

ENTERED = "The results of its calls were entered, for example after a restore."
"""The error text of a key whose results were entered."""
LEASE = 60
"""The lease in seconds. It never runs out, because the claim ends in the transaction that made it."""


def remember_calls(
    scope: str, operation: str, key: str, results: Mapping[str, Any], *, using: str | None = None
) -> dict[str, Any]:
    """Store the results of a key's calls, so that no retry makes these calls again.

    If the key is missing from the table, it is created. Afterwards, it is half done: the next retry or recovery does
    the rest of the work. Calling this again is safe: stored results stay as they are, and nothing changes if the key is
    completed, if a worker is processing it, or if a write is in doubt. The function runs in one transaction, or in a
    savepoint of an outer `atomic()` block.

    Args:
        scope: `operation.scope`, which the charge's metadata should carry: the scope as the endpoint's `scope=` returns
            it, or as the admin shows it.
        operation: `operation.name`, which the charge's metadata should carry, too, such as "POST pay/".
        key: the client's key, without quotes.
        results: the result of each step that the work or `reconcile` must find, by the step's name. Each is JSON, or a
            saved model instance. Leave out steps that wrote rows, because those rows are lost and must be rewritten.
        using: database alias; default: the write alias of the key table.

    Returns:
        The stored results of these steps, by name. A result that differs from yours belongs to a different call. A name
            is missing if its step could not be given a result, as described above.

    Raises:
        ResultNotStorable: a result cannot be stored. Nothing was changed.
        NotDecryptable: a stored result cannot be decrypted. Nothing was changed.
        ValueError: the scope, the operation or the key is empty, as in an export of charges that don't carry it.
        IdempotencyConfigurationError: the alias is unknown, or the database has no store.
    """
    for given, value in {"scope": scope, "operation": operation, "key": key}.items():
        if not value:  # no retry would ever find such a key
            raise ValueError(f"{given}={value!r}: fill it in, as the endpoint of this charge stores it.")
    identity, ttl = identify_given(scope=scope, operation=operation, key=key), resolve(LEASED).ttl_seconds
    request = ClaimRequest(identity=identity, fingerprint=None, ttl=ttl, lease=LEASE, policy="hold", reconciles=True)
    store = store_for(alias_for(using))
    rows = IdempotencyKey.objects.using(store.alias).filter(key_hash=identity.key_hash, scope_hash=identity.scope_hash)

    def enter() -> dict[str, Any]:
        # Once a completed key's `ttl` has passed, a claim would take it over, and its work would be done again.
        done = locked(rows.filter(status=IdempotencyKey.Status.COMPLETED)).exists()
        claim = None if done else store.claim(request)
        if isinstance(claim, Claimed):
            known = store.journal.steps(claim)
            for name, result in results.items():
                step = known.get(name)
                if step is None:
                    store.journal.start_call(claim, name, keyed=None)
                if step is None or not step.finished:
                    store.journal.finish_call(claim, name, encode_step(result))
                elif step.result is None:
                    store.journal.enter_lost(claim, name, encode_step(result))
            store.journal.fail(claim, request, ENTERED)
        row = rows.first()
        steps = [] if row is None else steps_of(store.alias, row).filter(name__in=results, result__isnull=False)
        return {step.name: decode(unseal(identity, "result", step.result, step.name)) for step in steps}

    return atomically(store.alias, enter)
