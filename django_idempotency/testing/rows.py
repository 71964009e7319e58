"""A factory of key rows that real requests meet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

from django.db import transaction
from django.db.models import F
from django.http import HttpResponse
from django.urls import resolve as resolve_path

from ..engine.conf import Idempotency, resolve
from ..engine.protocol.claims import ClaimRequest
from ..engine.protocol.digests import identify
from ..engine.protocol.outcomes import Claimed
from ..engine.request.callers import ANONYMOUS, account_scope
from ..engine.request.capture import capture
from ..engine.stores import alias_for, store_for
from ..models import IdempotencyKey

LEASE = 120
"""Seconds that a key in progress is locked for: longer than any test."""


def create_key(
    key: str | None = None,
    *,
    scope: str | None = None,
    user: Any = None,
    operation: str | None = None,
    path: str | None = None,
    method: str = "POST",
    status: Literal["completed", "in_progress", "abandoned", "failed"] = "completed",
    response: Any = None,
    tombstone: bool = False,
    fingerprint: bytes | None = None,
    expired: bool = False,
    using: str | None = None,
) -> IdempotencyKey:
    """Write the row that a request with this key would have left, for the next request with it to meet.

    Written by the package's own store, in a transaction of its own (inside an outer `atomic()`: a savepoint).

    key: as the client sends it, without quotes; default: a new UUID.
    scope, user: whose key it is, one of the two; default: an anonymous caller without any credential.
    operation, path and method: what was asked for, by name ("POST orders/") or by address ("/orders/"), whose route
        makes the name; default: "POST orders/". An endpoint that has an `operation=` of its own needs that name.
    status: "completed" is replayed; "in_progress" is a conflict for two minutes; "abandoned" is in progress under a
        lease that is over; "failed" runs again at once.
    response: what is replayed; default: 201 with an empty JSON object. tombstone: keep nothing of its body.
    fingerprint: 32 bytes; default None, which matches any request.
    expired: past its `ttl`: as if never seen, if it is completed or failed.
    using: database alias; default: the write alias of the key table.

    Raises ValueError if there is a living row already, or for arguments that contradict each other.
    """
    identity = identify(
        scope=_one(scope=scope, user=None if user is None else account_scope(user)) or ANONYMOUS,
        operation=_one(operation=operation, path=None if path is None else f"{method} {resolve_path(path).route}")
        or "POST orders/",
        key=str(uuid4()) if key is None else key,
    )
    options = resolve(Idempotency(store_body=not tombstone))
    lease = {"completed": None, "abandoned": -1.0}.get(status, LEASE)
    claim = ClaimRequest(identity=identity, fingerprint=fingerprint, ttl=options.ttl_seconds, lease=lease)
    store = store_for(alias_for(using))
    with transaction.atomic(using=store.alias):
        claimed = store.claim(claim)
        if not isinstance(claimed, Claimed):
            raise ValueError(f"There is a row for the key {identity.key!r} already: a request with it gets {claimed}.")
        if status == "completed":
            store.complete(claimed, capture(_rendered(response), options))
        elif status == "failed":
            store.fail(claimed, claim, "made by create_key")
        rows = IdempotencyKey.objects.using(store.alias).filter(pk=claimed.id)
        if expired:
            past = 2 * timedelta(seconds=options.ttl_seconds)
            rows.update(**{name: F(name) - past for name in ("created_at", "completed_at", "expires_at")})
        return rows.get()


def _one(**given: str | None) -> str | None:
    """The value of the one argument that was given."""
    values = [value for value in given.values() if value is not None]
    if len(values) > 1:
        raise ValueError(f"Give {' or '.join(given)} to create_key, not both.")
    return values[0] if values else None


def _rendered(response: Any) -> Any:
    if response is None:
        return HttpResponse(b"{}", status=201, content_type="application/json")
    return response.render() if callable(getattr(response, "render", None)) else response
