"""Write a key into the table, as if a request had left it there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from django.http import HttpResponse

from ..engine.conf import resolve
from ..engine.conf.options import OnAbandoned
from ..engine.execution.results import encode_step
from ..engine.protocol.digests import identify
from ..engine.protocol.key_syntax import new_key
from ..engine.protocol.outcomes import Claimed, ClaimRequest
from ..engine.request.callers import ANONYMOUS
from ..engine.request.responses import capture
from ..engine.stores import alias_for, store_for
from ..engine.stores.transactions import atomically
from ..models import IdempotencyKey

LEASE = 120
"""Seconds for which a key in progress is locked, longer than any test takes."""


def create_key(
    key: str | None = None,
    *,
    scope: str = ANONYMOUS,
    operation: str = "POST orders/",
    status: Literal["completed", "in_progress", "abandoned", "failed"] | None = None,
    steps: Mapping[str, Any] | None = None,
    in_doubt: Collection[str] = (),
    keyed: bool = False,
    on_abandoned: OnAbandoned = "retry-keyed",
    response: Any = None,
    using: str | None = None,
) -> IdempotencyKey:
    """Write a row into the key table, as if an earlier request with this key had left it there. The next request finds
    it.

    The row is written in one transaction, or in a savepoint inside an outer `atomic()` block. It has no fingerprint, so
    it matches any request with this key.

    Args:
        key: the key that the client sends, without quotes; default: a new UUID.
        scope: the caller, such as `scope_of_user(user)`; default: an anonymous caller without credentials.
        operation: the method and the route that `idempotency_endpoints` prints.
        status: "completed" is replayed, "in_progress" is a conflict for two minutes, "abandoned" is in progress with an
            expired lease, and "failed" runs again immediately; default: "completed", or "failed" with `steps`
            or `in_doubt`.
        steps: the results of finished calls, by the names of the calls.
        in_doubt: names of calls that were started but have no result.
        keyed: whether all these calls were made with their derived keys, so that "retry-keyed" repeats those in doubt.
        on_abandoned: the endpoint's policy for calls in doubt.
        response: the response to replay; default: 201 with an empty JSON object.
        using: database alias; default: the write alias of the key table.

    Returns:
        The row.

    Raises:
        ValueError: a row with this key exists and has not expired.
        ResultNotStorable: a step's result cannot be stored.
    """
    calls = {**dict.fromkeys(in_doubt), **(steps or {})}
    status = status or ("failed" if calls else "completed")
    lease = None if status == "completed" and not calls else -1 if status == "abandoned" else LEASE
    options = resolve()
    claim = ClaimRequest(
        identity=identify(scope=scope, operation=operation, key=new_key() if key is None else key),
        fingerprint=None,
        ttl=options.ttl_seconds,
        lease=lease,
        policy=None if lease is None else on_abandoned,
    )
    store = store_for(alias_for(using))

    def insert() -> int:
        claimed = store.claim(claim)
        if not isinstance(claimed, Claimed):
            raise ValueError(f"A row with the key {claim.identity.key!r} exists: a request with it gets {claimed}.")
        for name, result in calls.items():
            store.journal.start_call(claimed, name, keyed=keyed)
            if name not in in_doubt:
                store.journal.finish_call(claimed, name, encode_step(result))
        if status == "completed":
            answer = response or HttpResponse(b"{}", status=201, content_type="application/json")
            store.complete(claimed, capture(answer, options))
        elif status == "failed":
            store.journal.fail(claimed, claim, "made by create_key")
        return claimed.id

    return IdempotencyKey.objects.using(store.alias).get(pk=atomically(store.alias, insert))
