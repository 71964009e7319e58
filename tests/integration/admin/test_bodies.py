"""Stored bodies as text on the pages of the admin."""

from __future__ import annotations

import pytest
from django.test import Client

from django_idempotency.admin.bodies import readable_body
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import detail, make_key

pytestmark = pytest.mark.django_db


def test_bodies_are_escaped(admin_client: Client) -> None:
    """A stored response may hold what a client sent."""
    row = make_key(body=b"<script>alert(1)</script>", headers='[["Content-Type","text/html"]]')
    page = admin_client.get(detail(row)).content.decode()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json", b'{"a":[1]}', '{\n  "a": [\n    1\n  ]\n}'),
        ("application/problem+json", b"{broken", "{broken"),
        ("application/json", b'{"amount":19.9,"n":[]}', '{\n  "amount": 19.9,\n  "n": []\n}'),
        ("application/json", b'{"amount":1.10}', '{"amount":1.10}'),
        ("application/json", b"[1E5]", "[1E5]"),
        ("application/json", b"[1e999]", "[1e999]"),
        ("application/json", b"[-0]", "[-0]"),
        ("application/json", b"[" + b"9" * 5000 + b"]", "[" + "9" * 5000 + "]"),
        ("application/json", b'{"a":{},"a":[]}', '{"a":{},"a":[]}'),
        ("application/json", b"[" * 21 + b"]" * 21, "[" * 21 + "]" * 21),
        ("application/json", b'["Gr\\u00fc\\u00dfe", "\\ud800", "a\\"]"]', '[\n  "Grüße",\n  "\\ud800",\n  "a\\"]"\n]'),
        ("application/json", b"7", "7"),
        ("text/plain; charset=iso-8859-1", b"Gr\xfc\xdfe", "Grüße"),
        ("text/plain; charset=zlib", b"abc", "abc"),
        ("text/plain; charset=none-such", b"abc\xff", "abc\ufffd"),
        ("text/plain; charset=utf-16-le", b"a\x00b", "a\ufffd"),
        ("text/plain; charset=utf-7", b"a+2AA-", "a\\ud800"),
        ("text/plain; charset=unicode_escape", b"\\udfff", "\\udfff"),
        ("text/plain; charset=utf-8", "Grüße".encode(), "Grüße"),
        ("image/png", b"\x89PNG", "4 bytes of image/png"),
        ("text/plain", b"x" * 70000, "x" * 65536 + "\n… (70000 bytes in all)"),
        ("application/json", b"[" + b"1," * 40000, "[" + "1," * 32767 + "1" + "\n… (80001 bytes in all)"),
    ],
)
def test_bodies_are_readable(content_type: str, body: bytes, text: str) -> None:
    """By content type, cut at 64 KiB. JSON is indented unless that would change a number or lose a name."""
    assert readable_body(IdempotencyKey(headers=f'[["content-type","{content_type}"]]', body=body)) == text


def test_a_small_body_does_not_become_a_large_page() -> None:
    """9,000 brackets indented in full would be 80 MB, 30,000 numbers at the deepest level more than 1 MB."""
    for body in (b"[" * 9000 + b"]" * 9000, b"[" * 19 + b"1," * 30_000 + b"1" + b"]" * 19):
        row = IdempotencyKey(headers='[["Content-Type","application/json"]]', body=body)
        assert len(readable_body(row)) < 70_000


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("application/json", b'["\\ud83d"]'), ("text/plain; charset=utf-7", b"+2D0-")],
)
def test_half_a_surrogate_pair_is_no_error(admin_client: Client, content_type: str, body: bytes) -> None:
    """Text that no page can encode is shown escaped."""
    page = admin_client.get(detail(make_key(headers=f'[["Content-Type","{content_type}"]]', body=body)))
    assert page.status_code == 200
    assert "\\ud83d" in page.content.decode()


def test_half_a_surrogate_pair_in_a_header_is_no_error(admin_client: Client) -> None:
    """A view may set any reason phrase, which is kept among the headers."""
    page = admin_client.get(detail(make_key(headers='[[":reason","\\ud83d"]]')))
    assert page.status_code == 200
    assert "\\ud83d" in page.content.decode()


def test_a_tombstone_says_that_nothing_was_stored(admin_client: Client) -> None:
    """Not an empty body."""
    assert b"Not stored." in admin_client.get(detail(make_key(body=None))).content
