"""`assert_idempotent`: send an endpoint what clients send it, and fail with a message that names the defect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from django.db import connections
from django.test import AsyncClient

from ..engine.conf import resolve
from ..engine.stores import alias_for
from .checks import Creates, EndpointChecks
from .crashes import CrashChecks
from .requests import Request, key_in_header

ALTERED: Final[Any] = object()
"""The default of `changed`: the same body with one field more."""


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
    crash_at_each_step: bool = False,
    repeatable: Collection[str] = (),
    with_key: Callable[[str], Mapping[str, Any]] | None = None,
    using: str | None = None,
    **extra: Any,
) -> Any:
    """Check that an endpoint runs once for each key: send, retry, change the body, change the user, send duplicates.

    Works in any test class. With `transaction=True` the test must not run inside a transaction. Does not delete what
    the endpoint creates.

    Args:
        client: `django.test.Client` or REST framework's `APIClient`, logged in. Any object with such a `post()` works.
        path: as for `client.post`.
        data: as for `client.post`. May be a function, which is called for each new key: for an endpoint that takes
            the same body only once.
        method: the HTTP method, in any case.
        changed: another body, which must be refused under the same key, or a function such as `with_key`, which
            returns the other body. Default: the body with one field more. None skips this check, for
            `fingerprint=None`.
        other_client: a client of another user, who must not get the first user's response.
        creates: a model (counted on `using`), manager, queryset or function. Its count must grow once.
        expect_status: the status of the first response. Default: any below 400.
        required: whether a request without a key must be refused. Default: the `IDEMPOTENCY` setting.
        transaction: whether to send duplicates at once too, from threads with database connections of their own.
        duplicates: how many to send at once.
        crash_at_each_step: whether to stop the leased view at each boundary of its steps, and retry: for each boundary
            a request under a new key, which is stopped as `kill -9` would, and a retry after the lease. Needs a client
            that calls the view in this process. A `finally` of the view runs, and cannot write to a database.
        repeatable: names of calls that may be made twice without a derived key.
        with_key: `callable(key)` that returns the arguments of `client.post` that carry the key, for an endpoint with
            `key=`: `{"headers": …}`, or fields `{"data": {…}}`, or the whole body `{"data": b"…"}` with the headers
            that sign it. Default: the header.
        using: database alias of the endpoint's keys. Default: the write alias of the key table.
        extra: further arguments of `client.post`.

    Returns:
        The response to the first request.

    Raises:
        AssertionError: the endpoint is not idempotent. The message says why.
        RuntimeError: `transaction=True` cannot work in this test, or `crash_at_each_step=True` finds no step.
        TypeError: `client` is asynchronous, or `data` does not fit to what `with_key` returns.
    """
    __tracebackhide__ = True
    if isinstance(client, AsyncClient):
        raise TypeError("assert_idempotent needs django.test.Client, which tests asynchronous views too.")
    alias = alias_for(using)
    if transaction:
        _refuse_where_nothing_runs_at_once(alias)

    def new_request() -> Request:
        body, carry = data() if callable(data) else data, with_key or key_in_header
        return Request(client=client, method=method, path=path, data=body, extra=extra, with_key=carry)

    request = new_request()
    checks = EndpointChecks(request, creates=creates, alias=alias, in_header=with_key is None)
    checks.first_request(expect_status)
    checks.retry()
    if changed is not None:
        if changed is ALTERED:
            other = replace(request, alters_body=True)
        else:
            other = replace(request, with_key=changed) if callable(changed) else replace(request, data=changed)
        checks.changed_body(other)
    if other_client is not None:
        checks.other_user(other_client)
    if resolve().required if required is None else required:
        checks.no_key()
    if crash_at_each_step:
        CrashChecks(checks=checks, new_request=new_request, repeatable=repeatable).run()
    if transaction:
        checks.duplicates_at_once(new_request(), duplicates)
    checks.stored_response()
    return checks.first.response


def _refuse_where_nothing_runs_at_once(alias: str) -> None:
    """Raise RuntimeError if other threads could not see this thread's commits, or could not run beside this thread."""
    if open_ := [used.alias for used in connections.all(initialized_only=True) if used.in_atomic_block]:
        raise RuntimeError(
            f"transaction=True sends requests at once on connections of their own. This test runs inside a transaction "
            f"of {open_[0]!r}, which they cannot see. Use django.test.TransactionTestCase, or "
            "@pytest.mark.django_db(transaction=True)."
        )
    keys: Any = connections[alias]
    if keys.vendor == "sqlite" and keys.is_in_memory_db():
        raise RuntimeError(
            f"transaction=True needs requests that run at once. Database {alias!r} cannot do that, because it is an "
            'in-memory SQLite. Give it a file: DATABASES[…]["TEST"] = {"NAME": "/tmp/test.sqlite3"}.'
        )
