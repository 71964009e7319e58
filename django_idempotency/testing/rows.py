"""`create_key`: rows of the key table as requests leave them, for the next request to find."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

from django.db import transaction
from django.db.models import F, Model
from django.http import HttpResponse
from django.urls import get_urlconf
from django.urls import resolve as resolve_path

from ..endpoints import list_endpoints
from ..engine.conf import Idempotency, resolve
from ..engine.execution.values import encode_step
from ..engine.protocol.claims import ClaimRequest
from ..engine.protocol.digests import identify
from ..engine.protocol.outcomes import Claimed
from ..engine.request.callers import ANONYMOUS, account_scope
from ..engine.request.capture import capture
from ..engine.stores import Store, alias_for, store_for
from ..models import IdempotencyKey

LEASE = 120
"""Seconds for which a key in progress is locked: longer than any test."""


def create_key(
    key: str | None = None,
    *,
    scope: str | None = None,
    user: Any = None,
    operation: str | None = None,
    path: str | None = None,
    method: str = "POST",
    status: Literal["completed", "in_progress", "abandoned", "failed"] | None = None,
    steps: Mapping[str, Any] | None = None,
    in_doubt: Collection[str] = (),
    half_done: Mapping[str, Any] | None = None,
    response: Any = None,
    tombstone: bool = False,
    fingerprint: bytes | None = None,
    expired: bool = False,
    using: str | None = None,
) -> IdempotencyKey:
    """Write the row that a request with this key would have left. The next request with the key finds the row.

    Uses the package's own store, in a transaction of its own; inside an outer `atomic()`, in a savepoint.

    Args:
        key: the key as the client sends it, without quotes. Default: a new UUID.
        scope: the caller whose key it is. Give `scope` or `user`. Default: an anonymous caller without a credential.
        user: the user whose key it is.
        operation: the name of what was asked for, "POST orders/". Give `operation` or `path`. Default: "POST orders/".
        path: the address, "/orders/". Its endpoint gives the operation, and the policy for calls in doubt: what
            `on_abandoned=` says there. Default: "retry".
        method: the HTTP method that belongs to `path`.
        status: "completed" is replayed; "in_progress" is a conflict for two minutes; "abandoned" is in progress with
            an expired lease; "failed" runs again at once. Default: "completed"; with `in_doubt` or `half_done`,
            "failed".
        steps: results of finished steps, by name. A model instance is the result of a `write`, all else of a `call`.
        in_doubt: names of calls that were started and have no result.
        half_done: finished steps of a key that is not completed: the same as `steps`, with another default of `status`.
        response: what is replayed. Default: 201 with an empty JSON object.
        tombstone: whether to store the status of the response only, as `store_body=False` does.
        fingerprint: 32 bytes. Default: None, which matches any request.
        expired: whether the key is past its `ttl`. A completed or failed key then counts as never used.
        using: database alias. Default: the write alias of the key table.

    Returns:
        The row.

    Raises:
        ValueError: a row with this key exists and has not expired, or the arguments contradict each other.
        ResultNotStorable: a result of a step cannot be kept.
    """
    if isinstance(in_doubt, str):
        raise ValueError(f"in_doubt={in_doubt!r}: give a list of names, [{in_doubt!r}].")
    unsettled = bool(in_doubt) or half_done is not None
    status = status or ("failed" if unsettled else "completed")
    if status == "completed" and unsettled:
        raise ValueError("A completed key is neither in doubt nor half done: give status='failed' or 'abandoned'.")
    finished = {**(steps or {}), **(half_done or {})}
    named, policy = (None, "retry") if path is None else _endpoint(path, method)
    identity = identify(
        scope=_one_of(scope=scope, user=None if user is None else account_scope(user)) or ANONYMOUS,
        operation=_one_of(operation=operation, path=named) or "POST orders/",
        key=str(uuid4()) if key is None else key,
    )
    options = resolve(Idempotency(store_body=not tombstone))
    lease = None if status == "completed" and not finished else -1.0 if status == "abandoned" else LEASE
    claim = ClaimRequest(identity=identity, fingerprint=fingerprint, ttl=options.ttl_seconds, lease=lease)
    store = store_for(alias_for(using))
    with transaction.atomic(using=store.alias):
        claimed = store.claim(claim)
        if not isinstance(claimed, Claimed):
            raise ValueError(f"A row with the key {identity.key!r} exists already: a request with it gets {claimed}.")
        for name, result in finished.items():
            _finish_step(store, claimed, name, result)
        for name in in_doubt:
            store.journal.start_call(claimed, name, again=False)
        if status == "completed":
            answer = response or HttpResponse(b"{}", status=201, content_type="application/json")
            store.complete(claimed, capture(answer.render() if hasattr(answer, "render") else answer, options))
        elif status == "failed":
            store.journal.fail(claimed, claim, "made by create_key")
        rows = IdempotencyKey.objects.using(store.alias).filter(pk=claimed.id)
        if lease is not None:
            rows.update(policy=policy)
        if expired:
            past = 2 * timedelta(seconds=options.ttl_seconds)
            rows.update(**{name: F(name) - past for name in ("created_at", "completed_at", "expires_at")})
        return rows.get()


def _endpoint(path: str, method: str) -> tuple[str, str]:
    """Return the name of the operation, and its policy for calls in doubt."""
    route = resolve_path(path).route
    for endpoint in list_endpoints(get_urlconf()):
        if (endpoint.route, endpoint.method) == (route, method) and endpoint.options is not None:
            return endpoint.options.operation or f"{method} {route}", endpoint.options.on_abandoned
    return f"{method} {route}", "retry"


def _finish_step(store: Store, claimed: Claimed, name: str, result: Any) -> None:
    kept = encode_step(result)
    # A savepoint: at the end of an outermost transaction, `finish_write` may send the COMMIT.
    with transaction.atomic(using=store.alias):
        if isinstance(result, Model):
            store.journal.start_write(claimed, name)
            store.journal.finish_write(claimed, name, kept)
        else:
            store.journal.start_call(claimed, name, again=False)
            store.journal.finish_call(claimed, name, kept)


def _one_of(**given: str | None) -> str | None:
    """Return the value of the only argument that was given, or None."""
    values = [value for value in given.values() if value is not None]
    if len(values) > 1:
        raise ValueError(f"Give {' or '.join(given)} to create_key, not both.")
    return values[0] if values else None
