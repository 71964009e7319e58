"""`assert_idempotent`: what a client can do to an endpoint, done to it, and what is wrong said in plain words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ..engine.conf import resolve
from ..engine.stores import alias_for
from .evidence import Creates, Effects
from .proof import Proof
from .races import refuse_without_commits
from .sending import Request, header, keep, refuse_async

ALTERED: Final[Any] = object()
"""The default of `changed`: the same body with every value altered."""


def assert_idempotent(
    client: Any,
    path: str,
    data: Any = None,
    *,
    method: str = "POST",
    changed: Any = ALTERED,
    other_client: Any = None,
    creates: Creates = None,
    expect_status: int | None = None,
    required: bool | None = None,
    transaction: bool = False,
    duplicates: int = 8,
    with_key: Callable[[str], Mapping[str, Any]] | None = None,
    using: str | None = None,
    **extra: Any,
) -> Any:
    """Prove that an endpoint runs once for each key: send, replay, change the body, change the user, race.

    Works in any test class, but with `transaction=True` needs one without a transaction around it. Leaves what the
    endpoint has created behind. Returns the response of the first request.

    client: `django.test.Client` or REST framework's `APIClient`, logged in; or anything with a `post()` like theirs.
    path, data, **extra: as for `client.post`. data may be a function that is called for each new key, for an endpoint
        that takes the same body only once.
    changed: another body, which must be refused under the same key; None: do not try (`fingerprint=None`).
    other_client: another user's, who must not get the first one's answer.
    creates: a model (on that alias), manager, queryset or function; what it counts must grow once.
    expect_status: of the first answer; default: any below 400.
    required: must a request without a key be refused? Default: what the `IDEMPOTENCY` setting says.
    transaction: also send `duplicates` requests at once, from threads with database connections of their own.
    with_key: `callable(key)` that returns the arguments of `client.post` that carry the key, for an endpoint with a
        `key=` of its own: `{"headers": …}`, `{"data": {…}}`. Default: the header.
    using: database alias of the endpoint's keys; default: the write alias of the key table.

    Raises AssertionError that says what is wrong, RuntimeError where `transaction=True` cannot work.
    """
    __tracebackhide__ = True
    refuse_async(client)
    alias = alias_for(using)
    if transaction:
        refuse_without_commits(alias)
    new_data = data if callable(data) else lambda: data
    request = Request(
        client=client, method=method, path=path, data=keep(new_data()), extra=extra, carry=with_key or header
    )
    proof = Proof(request, effects=Effects(creates, alias), alias=alias, own_header=with_key is None)
    proof.first(expect_status)
    proof.retry()
    if changed is not None:
        proof.other_body(request.altered(None if changed is ALTERED else changed))
    if other_client is not None:
        proof.other_user(other_client)
    if resolve().required if required is None else required:
        proof.no_key()
    if transaction:
        proof.at_once(replace(request, data=keep(new_data())), duplicates)
    proof.kept()
    return proof.answer.response
