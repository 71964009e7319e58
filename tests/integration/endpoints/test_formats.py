"""The endpoints as a table and as Markdown."""

from __future__ import annotations

import pytest

from django_idempotency.endpoints.formats import path
from tests.integration.endpoints.shop import run


def test_table(shop: str) -> None:
    """A line for each endpoint, and one that counts."""
    assert run("--allow", "any", urlconf=shop)[0] == TABLE


def test_c8_c14_c15_markdown_is_the_published_specification(shop: str) -> None:
    """Header, format, what makes a key unique, how requests are compared, expiry and answers."""
    head, orders, pay, rest = run("--format", "markdown", "--allow", "any", urlconf=shop)[0].split("\n## ")
    assert head == "# Idempotency keys\n"
    lines = orders.splitlines()
    assert lines[0] == "POST /orders"
    assert lines[2:7] == [
        "- Header: `Idempotency-Key`, required",
        "- Key: 1 to 255 visible ASCII characters, unique for each operation, such as a UUID. In double quotes (a "
        'string of RFC 9651), or bare if it has none of " , ; ( ) and no : ? @ in front.',
        "- Unique for: the authenticated user, else the credential or session that was sent, else all anonymous "
        "callers; operation `POST orders`",
        "- Compared with the first request: method, path, query string, content type and body (JSON and forms up to "
        "128 KiB by their values)",
        "- Kept for: 1 day from the first request. After that the key is as if it had never been used.",
    ]
    answers = ["400 `missing-key`", "400 `invalid-key`", "409 `in-progress`", "409 `response-not-stored`"]
    assert [line[2:].split(' "')[0] for line in lines[7:]] == [*answers, "422 `already-used`", "503 `busy`"]
    assert lines[9] == (
        '- 409 `in-progress` "A request is outstanding for this Idempotency-Key": The first request with this key is '
        "still being processed. Retry it later, unchanged. `Retry-After`."
    )
    assert "- Header: `Idempotency-Key`, optional; without it the request is not protected\n" in pay
    assert "- Unique for: the caller, as tests.integration.endpoints.shop.tenant tells; operation `pay`\n" in pay
    assert ("query string, content type and the body fields amount\n" in pay, "missing-key" in pay) == (True, False)
    assert rest == "Not protected\n\nThese take no notice of a key: a retry may run again.\n\n- `POST /plain`\n"


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
