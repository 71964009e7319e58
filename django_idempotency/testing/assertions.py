"""This module has the function `assert_idempotent`, which sends requests to an endpoint in a test.

If the endpoint has a defect, the function fails with a message about the defect.
"""

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
"""The default value of `changed`. It stands for the same body with one more field."""


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

    The function sends a request, a retry, a request with a changed body, and a request without a key. With some
    arguments, the function sends more requests.

    The function works in any test class. But a test with `transaction=True` must not run inside a transaction. The
    function does not delete the rows that the endpoint creates.

    Args:
        client: `django.test.Client` or REST framework's `APIClient`, logged in. Any object with such a `post()` works.
        path: see `client.post`. If each path works only once, such as the capture of a payment, give a function that
            makes the payment and returns its path. It is called for each new key. What it makes must not count in
            `creates`.
        data: see `client.post`. If the endpoint accepts each body only once, give a function. It is called for each new
            key.
        method: the HTTP method, in capital or small letters.
        changed: another body, which must be refused under the first key, or a function like `with_key` that returns
            this body. Default: the body with one more field. With `fingerprint=None`, give None to leave this check
            out.
        other_client: a client of another user, who must not get the first user's response. Credentials among `extra`
            (`CREDENTIAL_HEADERS`, `Cookie`) are the first user's, and are not sent with it: give it its own.
        creates: a model (counted on `using`), manager, queryset or function. The count must grow by one.
        expect_status: the status of the first response. Default: any status below 400.
        required: whether a request without a key must be refused. Default: the `IDEMPOTENCY` setting.
        transaction: whether to also send duplicates at one time. Each is sent from its own thread with its own database
            connection.
        duplicates: how many duplicates are sent at the same time.
        crash_at_each_step: whether to stop the leased view before and after each of its steps, as `kill -9` would, and
            to send a retry after the lease. Each of these places gets a new key. The client must call the view in
            this process. A `finally` block of the view runs, but cannot write to a database.
        repeatable: names of calls that are harmless twice without a derived key.
        with_key: `callable(key)` for an endpoint with `key=`. It returns the arguments of `client.post` that carry the
            key: `{"headers": …}`, or fields `{"data": {…}}`, or the whole body `{"data": b"…"}` with the headers
            that sign this body. Default: the key is sent in the header.
        using: database alias of the endpoint's keys. Default: the write alias of the key table.
        backend: the endpoint's `backend`, whose keys have no rows. Then the responses alone are checked, so pass
            `creates`.
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
    """Raise RuntimeError if other threads cannot read this thread's rows, or if two threads cannot write at the same
    time.
    """
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
