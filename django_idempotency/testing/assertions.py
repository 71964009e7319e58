"""Check in a project's tests that an endpoint runs once for each key."""

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
"""The default of `changed`: the same body with one more field."""


def assert_idempotent(
    client: Any,
    path: str | Callable[[], str],
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
    backend: str | None = None,
    **extra: Any,
) -> Any:
    """Check that an endpoint runs once for each key.

    It sends a request, a retry, a request with a changed body and one without a key; some arguments add more requests.
    It works in any test class, but `transaction=True` must not be used inside a transaction. Rows that the endpoint
    creates are left in place.

    Args:
        client: `django.test.Client` or REST framework's `APIClient`, logged in. Any object with a compatible `post()`
            works.
        path: see `client.post`. If each path works only once, for example to capture a payment, pass a function that
            creates the payment and returns its path. It is called for each new key, and what it creates must not be
            counted by `creates`.
        data: see `client.post`. If the endpoint accepts each body only once, pass a function, which is called for each
            new key.
        method: the HTTP method, in upper or lower case.
        changed: a different body, which must be refused under the first key, or a function like `with_key` that returns
            it; default: the body with one more field. With `fingerprint=None`, pass None to skip this check.
        other_client: a client of another user, who must reach the protection, but not get the first user's response.
            Credentials in `extra` (`CREDENTIAL_HEADERS`, `Cookie`) belong to the first user and are not sent by this
            client: set its own credentials on it.
        creates: a model (counted on `using`), manager, queryset or function. The first request must increase the count,
            and the retry must not.
        expect_status: the status of the first response; default: any below 400.
        required: whether a request without a key must be refused; default: the `IDEMPOTENCY` setting.
        transaction: whether to also send duplicates at the same time, each from its own thread with its own database
            connection.
        duplicates: how many duplicates to send.
        crash_at_each_step: whether to stop the leased view before and after each of its steps, as `kill -9` would, and
            send a retry after the lease has expired. Each stop uses a new key. The client must call the view in this
            process. The view's `finally` blocks run, but cannot write to a database.
        repeatable: names of calls that are harmless when made twice without a derived key.
        with_key: `callable(key)` for an endpoint with `key=`. It returns the arguments of `client.post` that carry the
            key: `{"headers": …}`, or fields `{"data": {…}}`, or the whole body `{"data": b"…"}` with the headers that
            sign it; default: the key goes into the header.
        using: database alias of the endpoint's keys; default: the write alias of the key table.
        backend: the endpoint's `backend`, whose keys have no rows. In that case, only the responses can be checked,
            so pass `creates`.
        extra: further arguments of `client.post`.

    Returns:
        The response to the first request.

    Raises:
        AssertionError: the endpoint is not idempotent. The message says why.
        RuntimeError: `transaction=True` cannot work in this test, or `crash_at_each_step=True` finds no step.
        TypeError: `client` is asynchronous, or `data` cannot be merged with what `with_key` returns.
    """
    __tracebackhide__ = True
    if isinstance(client, AsyncClient):
        raise TypeError("assert_idempotent needs django.test.Client, which tests asynchronous views too.")
    alias = alias_for(using)
    if transaction:
        _refuse_where_nothing_runs_at_once(alias)

    def new_request() -> Request:
        body, carry = data() if callable(data) else data, with_key or key_in_header
        address = path() if callable(path) else path
        return Request(client=client, method=method, path=address, data=body, extra=extra, with_key=carry)

    request = new_request()
    in_table = backend is None
    checks = EndpointChecks(request, creates=creates, alias=alias, in_header=with_key is None, in_table=in_table)
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
    """Raise RuntimeError if other threads could not see this thread's rows, or could not write at the same time."""
    if open_ := [used.alias for used in connections.all(initialized_only=True) if used.in_atomic_block]:
        raise RuntimeError(
            f"transaction=True sends simultaneous requests on connections of their own. This test runs inside a "
            f"transaction on {open_[0]!r}, which they cannot see. Use django.test.TransactionTestCase, or "
            "@pytest.mark.django_db(transaction=True)."
        )
    keys: Any = connections[alias]
    if keys.vendor == "sqlite" and keys.is_in_memory_db():
        raise RuntimeError(
            f"transaction=True needs requests that run simultaneously, which database {alias!r} cannot do as an "
            'in-memory SQLite. Use a file for it: DATABASES[…]["TEST"] = {"NAME": "/tmp/test.sqlite3"}.'
        )
