"""Different requests that look the same: to a parser, to a charset, to JSON."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from django.test import RequestFactory

from django_idempotency import Idempotency
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.canonical import canonical
from django_idempotency.engine.request.fingerprints import fingerprint_of

FORM = "application/x-www-form-urlencoded"


def fingerprint(rf: RequestFactory, body: bytes, content_type: str = "application/json", **options: Any) -> Any:
    request = rf.generic("POST", "/", body, content_type=content_type)
    return fingerprint_of(request, resolve(Idempotency(**options)), request)


def test_what_a_framework_parses_is_told_apart() -> None:
    """Its parser may produce other types than JSON has: a text of the same content is another value."""
    values = [b"ab", "ab", "6162", ["bytes", "6162"], date(2026, 1, 2), "2026-01-02", Decimal("1.5"), "1.5"]
    assert len({canonical({"a": value}) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (b'{"a":1.5}', b'{"a":"\\u00001.5"}'),
        (b'{"a":1.5}', b'{"a":{"\\u0000Number":"1.5"}}'),
        (b'{"\\u0000Number":"1.5"}', b"1.5"),
        (b'{"\\u0000a":1}', b'{"\\u0000\\u0000a":1}'),
        (b'{"a":1e400}', b'{"a":"1e400"}'),
    ],
)
def test_no_text_looks_like_a_number(rf: RequestFactory, one: bytes, two: bytes) -> None:
    """A number with a fraction is kept as it was written, under a name that no client can write."""
    assert fingerprint(rf, one) != fingerprint(rf, two)


@pytest.mark.parametrize("chosen", ["request", ("to",)])
def test_the_charset_is_part_of_the_request(rf: RequestFactory, chosen: Any) -> None:
    """The REST framework decodes JSON by it. No charset is UTF-8, and a codec has many names."""
    body = b'{"to":"+AGEAdAB0AGEAYwBrAGUAcg-"}'
    kinds = ["application/json", "application/json; charset=UTF8", "Application/JSON;charset=utf-8"]
    kinds += [f"application/json; charset={charset}" for charset in ("utf-7", "latin-1", "x-unknown")]
    seen = [fingerprint(rf, body, kind, fingerprint=chosen) for kind in kinds]
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen)) == 4


def test_what_decodes_the_body_is_part_of_the_request(rf: RequestFactory) -> None:
    """A middleware may choose the charset of a form, as Django allows it."""
    request = rf.generic("POST", "/", b"a=%E9", content_type=FORM)
    before = fingerprint_of(request, resolve(), request)
    request.encoding = "latin-1"
    assert fingerprint_of(request, resolve(), request) != before


@pytest.mark.parametrize("csrf_parsed", [False, True])
def test_the_parameters_of_a_files_type_are_part_of_the_request(rf: RequestFactory, csrf_parsed: bool) -> None:
    """A view decodes the file by its charset."""

    def seen(type_: bytes, boundary: bytes) -> Any:
        head = b'--%s\r\nContent-Disposition: form-data; name="f"; filename="a"\r\nContent-Type: text/plain%s\r\n\r\n'
        body = head % (boundary, type_) + b"hi\r\n--%s--\r\n" % boundary
        request = rf.generic("POST", "/", body, content_type=f"multipart/form-data; boundary={boundary.decode()}")
        if csrf_parsed:
            assert request.POST == {}
        return fingerprint_of(request, resolve(), request)

    kinds = [b"", b"; charset=utf-8", b"; charset=utf-7", b"; charset=utf-7; x=1"]
    assert len({seen(kind, b"B") for kind in kinds}) == 4
    assert seen(kinds[3], b"B") == seen(kinds[3], b"C")
