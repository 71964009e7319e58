"""Any bytes at all in the header and the body: protected and bare, a view answers the same."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.core.handlers.exception import response_for_exception
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_idempotency import idempotent
from tests.shopapp.models import Order

pytestmark = pytest.mark.django_db
fuzzed = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
READERS: dict[str, Callable[[HttpRequest], Any]] = {
    "nothing": lambda request: "",
    "body": lambda request: request.body,
    "read": lambda request: request.read(10) + request.read(),
    "form": lambda request: sorted(request.POST.lists()),
    "files": lambda request: [
        (name, file.name, file.read()) for name, files in request.FILES.lists() for file in files
    ],
    "json": lambda request: json.loads(request.body),
}


def view(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    return HttpResponse(repr(READERS[request.headers["X-Reader"]](request)).encode("utf-8", "backslashreplace"))


protected = idempotent(scope=lambda request: "fuzz")(view)


def answer(callback: Callable[[HttpRequest], HttpResponse], request: HttpRequest) -> tuple[int, bytes]:
    """What Django would send: an exception is its answer's status."""
    try:
        response = callback(request)
    except Exception as error:
        response = response_for_exception(request, error)
        return response.status_code, b""
    return response.status_code, response.content


CONTENT_TYPES = st.sampled_from(
    [
        "application/json",
        "application/vnd.api+json; charset=latin-1",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "multipart/form-data",
        "multipart/mixed; boundary=x",
        "text/plain; charset=klingon",
        "application/octet-stream",
        "",
        "/;;=",
    ]
)
PART = st.tuples(
    st.sampled_from([b'form-data; name="a"', b'form-data; name="a"; filename="f"', b"form-data", b'x; name="', b""]),
    st.sampled_from([b"", b"Content-Transfer-Encoding: base64\r\n", b"Content-Type: \xff\r\n", b"Broken\r\n"]),
    st.binary(max_size=30),
).map(lambda part: b"--x\r\nContent-Disposition: %s\r\n%s\r\n%s\r\n" % part)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.lists(PART, max_size=4).map(lambda parts: b"".join(parts) + b"--x--\r\n"),
    st.lists(PART, max_size=3).map(b"".join),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=5).map(
        lambda pairs: "&".join("=".join(pair) for pair in pairs).encode("utf-8", "replace")
    ),
)


@fuzzed
@given(
    content_type=CONTENT_TYPES,
    body=BODIES,
    reader=st.sampled_from(sorted(READERS)),
    method=st.sampled_from(["POST", "PATCH"]),
)
@example("application/json", b"[" * 100_000, "body", "POST")
@example("application/json", b'{"a":1,"a":2}', "json", "POST")
@example("application/json", b"1" * 5000, "json", "POST")
@example("application/x-www-form-urlencoded", b"&".join(b"a=1" for _ in range(2000)), "form", "POST")
@example("multipart/form-data; boundary=x", b"--x\r\n" * 500, "form", "POST")
@example("application/json", gzip.compress(b"{}" * 10), "body", "POST")
def test_a_view_answers_as_it_would_without_protection(
    rf: RequestFactory, content_type: str, body: bytes, reader: str, method: str
) -> None:
    """The same status and content for every body, however it is read; and its retry is a replay, or runs again."""

    def request(key: str = "") -> HttpRequest:
        headers = {"X-Reader": reader, **({"Idempotency-Key": key} if key else {})}
        return rf.generic(method, "/", body, content_type=content_type, headers=headers)

    key = str(uuid4())
    bare = answer(view, request())
    assert answer(protected, request(key)) == bare
    orders = Order.objects.count()
    assert answer(protected, request(key)) == bare
    assert Order.objects.count() == orders


@fuzzed
@given(value=st.text(st.characters(max_codepoint=255), max_size=300))
@example("\x00")
@example('"' + "a" * 255 + '"')
@example('"' + "a" * 256 + '"')
@example("a\r\nSet-Cookie: x=1")
@example("';DROP TABLE shopapp_order;--")
@example("%s%(a)s{0}")
def test_any_header_is_a_key_or_refused(rf: RequestFactory, value: str) -> None:
    """Never an error of ours; what is refused costs not one statement, and nothing of it comes back in a header."""
    request = rf.post("/", {}, content_type="text/plain", headers={"X-Reader": "nothing"})
    request.META["HTTP_IDEMPOTENCY_KEY"] = value
    with CaptureQueriesContext(connection) as queries:
        response = protected(request)
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        assert len(queries) == 0
        assert response.headers["Content-Type"] == "application/problem+json"
    assert not any("\r" in text or "\n" in text for pair in response.headers.items() for text in pair)


@pytest.mark.parametrize("size", [25 * 1024 * 1024])
def test_a_large_body_is_not_held_in_memory(rf: RequestFactory, size: int) -> None:
    """It is spooled to a file and hashed as a stream: a few megabytes at most, besides the test's own copy."""
    import tracemalloc

    body = b"x" * size
    request = rf.generic(
        "POST",
        "/",
        body,
        content_type="application/octet-stream",
        headers={"X-Reader": "nothing", "Idempotency-Key": "k"},
    )
    tracemalloc.start()
    try:
        assert protected(request).status_code == 200
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
