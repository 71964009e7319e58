"""What one client can make a server spend: memory, statements, time."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from django.core.exceptions import SuspiciousOperation
from django.http.multipartparser import MultiPartParserError
from django.test import Client, RequestFactory

from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.key_syntax import InvalidKey, parse_header
from django_idempotency.engine.request.fingerprints import fingerprint_of, payload_of
from django_idempotency.engine.request.problems import Refused
from django_idempotency.models import IdempotencyKey

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.attacks.stored_urls")]
MB = 1024 * 1024


class Upload:
    """A body that is made while it is read, so that only what the reader keeps is counted."""

    def __init__(self, start: bytes, chunk: bytes, end: bytes, length: int) -> None:
        self.start, self.chunk, self.end = start, chunk, end
        self.position, self.length = 0, length

    def readline(self, size: int) -> bytes:
        raise AssertionError("a line may be as long as the body")

    def read(self, size: int) -> bytes:
        size = min(size, self.length - self.position)
        # Where the last piece ended, there the next one goes on.
        offset = (self.position - len(self.start)) % len(self.chunk)
        piece = (self.chunk * (size // len(self.chunk) + 2))[offset : offset + size]
        if self.position == 0:
            piece = self.start + piece[len(self.start) :]
        self.position += size
        return piece[: -len(self.end)] + self.end if self.end and self.position == self.length else piece


def peak(rf: RequestFactory, content_type: str, upload: Upload) -> float:
    """Megabytes that the fingerprint of this body takes at most. A body is read to its end, or not held at all."""
    environ: Any = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(upload.length), "wsgi.input": upload}
    request = rf.generic("POST", "/", **environ)
    tracemalloc.start()
    try:
        try:
            assert fingerprint_of(request, resolve(), request, payload_of) is not None
            assert upload.position == upload.length
        except (Refused, MultiPartParserError, SuspiciousOperation):  # the others are Django's own, of a form
            assert upload.length > 2_621_440
        return tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()
        request.close()


FILE = b'--x\r\nContent-Disposition: form-data; name="a"; filename="f"\r\n\r\n'
FIELD = FILE.replace(b'; filename="f"', b"")


@pytest.mark.parametrize(
    ("content_type", "start", "chunk", "end"),
    [
        ("application/json", b"[", b"[],", b"1]"),
        ("application/json", b'"', b"a", b'"'),
        ("application/x-www-form-urlencoded", b"", b"a=1&", b""),
        ("multipart/form-data; boundary=x", FILE, b"a", b"\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", FILE, b"\r\n", b"\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", FIELD, b"a", b"\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"", FIELD + b"\r\n", b""),
        ("multipart/form-data; boundary=y", b"", b"no boundary ", b""),
        ("application/octet-stream", b"", b"\0", b""),
    ],
)
def test_20_mb_are_never_held_in_memory(
    rf: RequestFactory, content_type: str, start: bytes, chunk: bytes, end: bytes
) -> None:
    """A few times FILE_UPLOAD_MAX_MEMORY_SIZE (2.5 MB), whatever the body is said to be. Files of forms are on disk."""
    assert peak(rf, content_type, Upload(start, chunk, end, 20 * MB)) < 12


@pytest.mark.parametrize("size", [128 * 1024, 20 * MB])
@pytest.mark.parametrize(
    ("content_type", "start", "chunk", "end"),
    [
        ("application/json", b"[", b"[],", b"1]"),
        ("application/json", b"[", b'{"":[]},', b"1]"),
        ("application/json", b"[", b"1.5,", b"1]"),
        ("application/x-www-form-urlencoded", b"a=", b"%41", b""),
        ("application/x-www-form-urlencoded", b"", b"a=1&", b""),
        ("application/x-www-form-urlencoded", b"", b"&", b""),
    ],
)
def test_no_body_costs_many_times_its_size(
    rf: RequestFactory, settings: Any, content_type: str, start: bytes, chunk: bytes, end: bytes, size: int
) -> None:
    """2.6 MB of %41 cost 210 MB: parsed, they are 85 times as large. Only 128 KiB are parsed, under any setting.

    Without Django's limit the body itself is held, as `request.body` holds it (and this test, twice).
    """
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = None
    assert peak(rf, content_type, Upload(start, chunk, end, size)) < 12 + 3 * size / MB


@pytest.mark.parametrize(
    "field",
    [
        '"' + "\\" * 65_536,
        '"' + '\\"' * 32_768,
        '"a"' + ";a" * 32_768 + "!",
        '"a"' + ';a="b"' * 10_000 + "\x00",
        '"a";' + " " * 65_536,
        '"a";a=' + "1" * 65_536 + "é",
        '"a";a=:' + "a" * 65_536,
        " \t" * 32_768,
        "a" * 65_536,
    ],
)
def test_the_largest_header_is_read_in_one_pass(field: str) -> None:
    """64 KB that look like a key for as long as they can: no pattern goes back over them again and again."""
    with pytest.raises(InvalidKey):
        parse_header(field)


@pytest.mark.parametrize("path", ["body", "form", "loads"])
@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded"])
@pytest.mark.urls("tests.attacks.pairs")
def test_what_django_refuses_for_its_size_is_refused_and_claims_nothing(
    client: Client, path: str, content_type: str
) -> None:
    """A view that asks for more than DATA_UPLOAD_MAX_MEMORY_SIZE gets Django's 400. Under protection each gets 413."""
    sent: Any = {"content_type": content_type, "headers": {"Idempotency-Key": "k"}}
    statuses = [client.post(f"/{kind}/{path}", b"1" * 3 * MB, **sent).status_code for kind in ("bare", "protected")]
    expected = 200 if (path, content_type) == ("form", "application/json") else 400  # no form at all
    assert statuses == [expected, 413]
    assert not IdempotencyKey.objects.exists()


def test_numbers_that_collide_are_never_looked_up(client: Client) -> None:
    """Python hashes text with a secret of the process, but numbers without: here they are values, never names."""
    body = [number * (2**61 - 1) for number in range(1, 100_000)]
    assert len({hash(number) for number in body}) == 1
    headers = {"Idempotency-Key": "k"}
    answers = [client.post("/swallow", body, content_type="application/json", headers=headers) for _ in range(2)]
    assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "true"]


@pytest.mark.parametrize("depth", [100, 900, 20_000, 1_000_000])
def test_deep_json_is_a_body_like_any_other(client: Client, depth: int) -> None:
    """Up to 2 MB of brackets: accepted, and replayed."""
    body = b"[" * depth + b"]" * depth
    headers = {"Idempotency-Key": "k"}
    answers = [client.post("/swallow", body, content_type="application/json", headers=headers) for _ in range(2)]
    assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "true"]
    assert answers[1].content == str(2 * depth).encode()


def test_a_value_that_is_deeper_than_python_shows_is_compared_by_its_bytes(rf: RequestFactory) -> None:
    """Python 3.13 parses a list of 9,989 levels, and shows one of fewer."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    one, same, other = (
        fingerprint_of(request, resolve(), request, lambda *read: deep)
        for request in (rf.post("/", body, content_type="application/json") for body in ("[1]", "[1]", "[2]"))
    )
    assert one == same != other
