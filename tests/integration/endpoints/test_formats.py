"""The endpoints as a table and as Markdown."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.endpoints.formats import path
from tests.integration.endpoints.shop import run


def test_table(shop: str) -> None:
    """A line for each endpoint, and one that counts."""
    assert run("--allow", "any", urlconf=shop)[0] == TABLE


def test_c8_c14_c15_markdown_is_the_published_specification(shop: str, settings: Any) -> None:
    """Header, format, what makes a key unique, how requests are compared, expiry and answers."""
    settings.IDEMPOTENCY = {"DOCS_URL": "https://shop.example/retries"}
    assert run("--format", "markdown", "--allow", "any", urlconf=shop)[0] == MARKDOWN


@pytest.mark.parametrize(
    ("route", "shown"),
    [
        ("orders/<int:pk>/", "/orders/<int:pk>/"),
        (r"^api/orders/(?P<pk>[^/.]+)/$", "/api/orders/<pk>/"),
        (r"orders\.(?P<format>[a-z0-9]+)$", "/orders.<format>"),
        ("", "/"),
        (r"\/orders", "/orders"),
    ],
)
def test_paths(route: str, shown: str) -> None:
    """As a client reads them."""
    assert path(route) == shown


TABLE = """\
method  route   view                                   protected    mode    kept for    scope                                    key       note
POST    orders  tests.integration.endpoints.shop.view  yes          atomic  1 day       caller                                   required
POST    pay     tests.integration.endpoints.shop.view  yes          atomic  90 seconds  tests.integration.endpoints.shop.tenant  optional
POST    plain   tests.integration.endpoints.shop.view  no
ANY     any     tests.integration.endpoints.shop.view  no, allowed

2 protected, 2 not, of which 1 are allowed.
"""  # noqa: E501 (as it is printed)


MARKDOWN = """\
# Idempotency keys

Make up a key for each operation, send it in the request header `Idempotency-Key`, and send the same key with every \
retry of that operation, which must be the same request.

`Idempotency-Replayed` in an answer says whether it is the kept answer of an earlier request (`true`) or first-hand \
(`false`). Without that header no key was honoured.

See also: <https://shop.example/retries>

## POST /orders

- Header: `Idempotency-Key`, required
- Key: 1 to 255 visible ASCII characters, unique for each operation, such as a UUID. In double quotes (a string of \
RFC 9651), or bare if it has none of " , ; ( ) and no : ? @ in front.
- Unique for: the authenticated user, else the credential or session that was sent, else all anonymous callers; \
operation `POST orders`
- Compared with the first request: method, path, query string, content type and body (JSON and forms up to 128 KiB by \
their values)
- Kept for: 1 day from the first request. After that the key is as if it had never been used.
- 400 `missing-key` "Idempotency-Key is missing": \
This operation needs the request header Idempotency-Key with a unique value, such \
as a UUID.
- 400 `invalid-key` "Idempotency-Key is not valid": The request header Idempotency-Key does not carry a usable key.
- 409 `in-progress` "A request is outstanding for this Idempotency-Key": \
The first request with this key is still being processed. \
Retry it later, unchanged. `Retry-After`.
- 409 `response-not-stored` "Idempotency-Key is completed, response not stored": \
The request was processed, and its response is not kept. \
It is not run again.
- 422 `already-used` "Idempotency-Key is already used": \
This key was used for another request. Use a new key for a new request.
- 503 `busy` "The idempotency store is busy": Nothing was done. Retry the request later, unchanged. `Retry-After`.

## POST /pay

- Header: `Idempotency-Key`, optional; without it the request is not protected
- Key: 1 to 255 visible ASCII characters, unique for each operation, such as a UUID. In double quotes (a string of \
RFC 9651), or bare if it has none of " , ; ( ) and no : ? @ in front.
- Unique for: the caller, as tests.integration.endpoints.shop.tenant tells; operation `pay`
- Compared with the first request: method, path, query string, content type and the body fields amount
- Kept for: 90 seconds from the first request. After that the key is as if it had never been used.
- 400 `invalid-key` "Idempotency-Key is not valid": The request header Idempotency-Key does not carry a usable key.
- 409 `in-progress` "A request is outstanding for this Idempotency-Key": \
The first request with this key is still being processed. \
Retry it later, unchanged. `Retry-After`.
- 409 `response-not-stored` "Idempotency-Key is completed, response not stored": \
The request was processed, and its response is not kept. \
It is not run again.
- 422 `already-used` "Idempotency-Key is already used": \
This key was used for another request. Use a new key for a new request.
- 503 `busy` "The idempotency store is busy": Nothing was done. Retry the request later, unchanged. `Retry-After`.

## Not protected

These take no notice of a key: a retry may run again.

- `POST /plain`
"""
