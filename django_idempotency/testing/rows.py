"""This module has the function `create_key`, which writes a test row into the key table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from django.db import transaction
from django.http import HttpResponse

from ..engine.conf import resolve
from ..engine.conf.options import OnAbandoned
from ..engine.execution.operation import encode_step
from ..engine.protocol.digests import identify
from ..engine.protocol.key_syntax import new_key
from ..engine.protocol.outcomes import Claimed, ClaimRequest
from ..engine.request.callers import ANONYMOUS
from ..engine.request.responses import capture
from ..engine.stores import alias_for, store_for
from ..models import IdempotencyKey

LEASE = 120
"""A key in progress is locked for this number of seconds. No test takes so long."""


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
    """Write a row into the key table. The row looks like the row of an earlier request with this key. The next request
    with this key finds the row.

    This function writes the row in a new transaction. Inside an outer `atomic()`, the function uses a savepoint. The
    row has no fingerprint, so the row matches any request with this key.

    Args:
        key: the key that the client sends, without quotes. Default: a new UUID.
        scope: the caller, such as `scope_of_user(user)`. Default: an anonymous caller without a credential.
        operation: the method and the route that `idempotency_endpoints` prints.
        status: a "completed" key is replayed. An "in_progress" key is a conflict for two minutes. An "abandoned" key is
            in progress, but its lease is over. A "failed" key runs again at once. Default: "completed", but "failed"
            with `steps` or `in_doubt`.
        steps: the results of finished calls, by the names of the calls.
        in_doubt: names of calls that were started and have no result.
        keyed: whether these calls were made with their derived keys, so that "retry-keyed" makes one in doubt again.
        on_abandoned: the policy of the endpoint for calls in doubt.
        response: the response to replay. Default: 201 with an empty JSON object.
        using: database alias. Default: the write alias of the key table.

    Returns:
        The row.

    Raises:
        ValueError: a row with this key exists and has not expired.
        ResultNotStorable: a result of a step cannot be kept.
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
    with transaction.atomic(using=store.alias):
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
        return IdempotencyKey.objects.using(store.alias).get(pk=claimed.id)
