"""The endpoints as a table and as Markdown."""

from __future__ import annotations

from typing import Any

from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from django_idempotency.keys import from_form_field
from tests.operators.endpoints.shop import run, tenant, view


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
        'string of RFC 9651), or bare if it has no " , ; ( ) and begins with no : ? @.',
        "- Unique for: the authenticated user, else the credential or session that was sent, else all anonymous "
        "callers; operation `POST /orders`",
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
    assert "- Unique for: the caller, as tests.operators.endpoints.shop.tenant returns it; operation `pay`\n" in pay
    assert ("query string, content type and the body fields amount\n" in pay, "missing-key" in pay) == (True, False)
    assert rest == "Not protected\n\nThese ignore keys: a retry may run again.\n\n- `POST /plain`\n"


def test_an_observed_endpoint_is_unprotected_in_both_formats(urlconf: Any) -> None:
    """It has options, but each retry runs."""
    shop = urlconf(pay=require_POST(idempotent(observe=True)(view)))
    assert run("--format", "markdown", urlconf=shop)[0].endswith("a retry may run again.\n\n- `POST /pay`\n")
    lines = run(urlconf=shop)[0].splitlines()
    assert lines[1].split()[3:] == ["no", "only", "observed"]
    assert lines[3] == "0 protected, 1 not, of which 0 are allowed."


TABLE = """\
method  route   view                                 protected    mode    kept for    scope                                  key       note
POST    orders  tests.operators.endpoints.shop.view  yes          atomic  1 day       caller                                 required
POST    pay     tests.operators.endpoints.shop.view  yes          atomic  90 seconds  tests.operators.endpoints.shop.tenant  optional
POST    plain   tests.operators.endpoints.shop.view  no
ANY     any     tests.operators.endpoints.shop.view  no, allowed

2 protected, 2 not, of which 1 are allowed.
"""  # noqa: E501 (as it is printed)


def test_c4_what_makes_a_key_unique_is_published(urlconf: Any) -> None:
    """The scope in words; a key that is not read from the header is told."""
    urls = urlconf(
        refuse=idempotent(anonymous="refuse", methods=["POST"], may_replay=view, fingerprint=None)(view),
        event=idempotent(key=tenant, methods=["POST"], fingerprint=tenant)(view),
        form=idempotent(key=from_form_field(), methods=["POST"])(view),
    )
    refuse, event, form = run("--format", "markdown", urlconf=urls)[0].split("\n## ")[1:]
    assert "- Key: the form field 'idempotency_key'\n" in form
    assert "the credential or session that was sent; others are refused; operation `POST /refuse`" in refuse
    assert '- 403 `unidentified-caller` "Idempotency-Key needs an identified caller"' in refuse
    assert '- 403 `replay-refused` "Replay is not permitted"' in refuse
    assert "Compared with the first request: method and path\n" in refuse
    assert "- Key: read by tests.operators.endpoints.shop.tenant\n" in event
    assert "first request: method, path, query string and what tests.operators.endpoints.shop.tenant returns\n" in event
    assert "- Header" not in event


def test_c9_what_is_compared_is_published(urlconf: Any) -> None:
    """The fields that count are told."""
    urls = urlconf(chosen=idempotent(methods=["POST"], fingerprint=("amount", "meta"))(view))
    published = run("--format", "markdown", urlconf=urls)[0]
    assert "first request: method, path, query string, content type and the body fields amount, meta\n" in published
