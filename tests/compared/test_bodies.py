"""What a view finds of a body that was compared, what cannot be compared, and forms."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.test.client import encode_multipart

from django_idempotency import IdempotencyConfigurationError, idempotent
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.fingerprints import Unparsable, fingerprint_of, payload_of
from django_idempotency.engine.request.problems import Refused
from django_idempotency.models import IdempotencyKey
from tests.http import posting_to_a_view, problem, replayed
from tests.payloads import FORM, JSON, MULTIPART, of, parsed_as
from tests.shopapp.models import Order
from tests.views import answers, creates, paths

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.compared.test_bodies")]


def form_of(request: HttpRequest, order: Order) -> HttpResponse:
    return JsonResponse({name: [f.name, f.size] for name, f in request.FILES.items()} | dict(request.POST.items()))


urlpatterns = paths(create=idempotent(creates()), upload=idempotent(creates(then=form_of)))


def consuming(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that takes the stream away."""

    def middleware(request: HttpRequest) -> Any:
        request.read(1)
        return get_response(request)

    return middleware


# --- what a view finds


@pytest.mark.parametrize("kind", [JSON, FORM, "text/plain"])
def test_a_body_can_be_read_again(rf: RequestFactory, kind: str) -> None:
    """By the check of a webhook's signature, by the view, and by error reports."""
    request = rf.generic("POST", "/", b"six=six", content_type=kind)
    of(request)
    assert (request.body, request.read(), request.body) == (b"six=six", b"six=six", b"six=six")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("content_type", [JSON, FORM, MULTIPART, "text/plain"])
def test_a_stream_that_a_middleware_took_away_is_an_error(
    client: Any, settings: Any, method: str, content_type: str
) -> None:
    """What cannot be compared is never taken for equal. Without a comparison nothing is missing."""
    settings.MIDDLEWARE = [f"{__name__}.consuming"]
    body = encode_multipart("x", {"a": "1"})
    with pytest.raises(IdempotencyConfigurationError, match="was consumed before the view"):
        client.generic(method, "/create", body, content_type=content_type, headers={"Idempotency-Key": "k"})
    assert Order.objects.count() == 0
    assert posting_to_a_view(fingerprint=None)(consumed=True).status_code == 200


def test_a_consumed_body_that_no_parser_takes_is_an_error(rf: RequestFactory) -> None:
    """There are no bytes left to compare. What a parser has made of the body before is compared."""

    def refusing() -> Any:
        raise Unparsable

    request = rf.post("/", b"x", content_type=JSON)
    request.read()
    assert fingerprint_of(request, resolve(), request, parsed_as(lambda: {"a": 1}))
    with pytest.raises(IdempotencyConfigurationError, match="consumed before the view"):
        fingerprint_of(request, resolve(), request, parsed_as(refusing))


# --- what cannot be compared


CUT_OFF = [(JSON, b'{"amount":1}'), (FORM, b"amount=100"), (MULTIPART, encode_multipart("x", {"amount": "100"}))]


@pytest.mark.parametrize("before", [lambda request: None, lambda request: request.POST, lambda request: request.body])
@pytest.mark.parametrize(("kind", "body"), CUT_OFF)
def test_a_truncated_body_is_refused_before_the_claim(rf: RequestFactory, kind: str, body: bytes, before: Any) -> None:
    """A server hands over what it got before the client hung up; the retry in full must not meet it as a mismatch."""
    sent: Any = {"CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body[:-2])}
    request = rf.generic("POST", "/", body, content_type=kind, **sent)
    before(request)  # a middleware may have read the body
    with pytest.raises(BadRequest, match="ended before its Content-Length"):
        of(request)
    of(rf.generic("POST", "/", body, content_type=kind))


@pytest.mark.parametrize("before", [lambda request: None, lambda request: request.POST, lambda request: request.body])
@pytest.mark.parametrize("left", [0, 1, -1])
@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("identity", bytes), ("br", bytes), ("X-GZIP", gzip.compress), ("deflate", zlib.compress)],
)
def test_a_truncated_body_is_refused_under_any_encoding(
    rf: RequestFactory, encoding: str, encode: Any, left: int, before: Any
) -> None:
    """Nobody has decompressed it, so its length is the one that was announced."""
    body = encode(b"amount=1&amount=2&reference=encoded")
    headers: Any = {"Content-Encoding": encoding}
    sent: Any = {"CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body[:left])}
    request = rf.generic("POST", "/", body, content_type=FORM, headers=headers, **sent)
    before(request)
    with pytest.raises(BadRequest, match="ended before its Content-Length"):
        of(request)
    assert of(rf.generic("POST", "/", body, content_type=FORM, headers=headers))


@pytest.mark.parametrize("number", [int, str])
def test_a_content_length_may_be_a_number(rf: RequestFactory, number: Any) -> None:
    """Django's file upload tests, and some servers, give an int."""
    body = b'{"amount":1}'
    whole, more = ({"CONTENT_LENGTH": number(length), "wsgi.input": BytesIO(body)} for length in (len(body), 50))
    assert of(rf.generic("POST", "/", body, content_type=JSON, **whole))
    with pytest.raises(BadRequest, match="ended before its Content-Length"):
        of(rf.generic("POST", "/", body, content_type=JSON, **more))


@pytest.mark.parametrize("kind", [JSON, MULTIPART])
def test_a_chunked_body_that_wsgi_does_not_show_is_411(rf: RequestFactory, kind: str) -> None:
    """Any two would be the same empty body. Nothing is claimed; with `fingerprint=` the project says what counts."""
    sent: Any = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": BytesIO(b"")}

    def request() -> Any:
        return rf.generic("POST", "/", b"{}", content_type=kind, headers={"Idempotency-Key": "k"}, **sent)

    response = idempotent(answers())(request())
    assert (response.status_code, problem(response)["code"], replayed(response)) == (411, "length-required", "false")
    assert not IdempotencyKey.objects.exists()
    with pytest.raises(Refused, match="length-required"):  # a framework's parser finds nothing, either
        fingerprint_of(request(), resolve(), request(), parsed_as(dict))
    assert idempotent(fingerprint=None)(answers())(request()).status_code == 200


def test_a_chunked_body_under_asgi_is_compared(async_rf: AsyncRequestFactory) -> None:
    """The whole body is there, whatever its length."""

    def chunked(body: bytes) -> Any:
        request = async_rf.generic("POST", "/", body, content_type=JSON, headers={"Transfer-Encoding": "chunked"})
        request.META.pop("CONTENT_LENGTH", None)
        return of(request)

    assert chunked(b'{"a":1}') == chunked(b'{"a": 1}') != chunked(b'{"a":2}')
    assert chunked(b"")


# --- forms


@pytest.mark.parametrize("csrf_parsed", [False, True])
def test_uploads_work_and_are_compared_by_content(key: str, csrf_parsed: bool) -> None:
    """3 MB with a new boundary is the same upload, another file is not, even if CSRF has parsed the form before."""
    client = Client(enforce_csrf_checks=csrf_parsed)
    client.cookies["csrftoken"] = token = "a" * 32

    def send(content: bytes, boundary: str) -> Any:
        data = {"note": "n", "csrfmiddlewaretoken": token, "file": SimpleUploadedFile("a.bin", content)}
        return client.post(
            "/upload",
            encode_multipart(boundary, data),
            content_type=f"multipart/form-data; boundary={boundary}",
            headers={"Idempotency-Key": key},
        )

    content = bytes(range(256)) * 12_000
    first, second, third = send(content, "one"), send(content, "two"), send(content[:-1] + b"!", "one")
    assert first.json() == {"note": "n", "csrfmiddlewaretoken": token, "file": ["a.bin", 3_072_000]}
    assert (second.content, replayed(second)) == (first.content, "true")
    assert third.status_code == 422
    assert Order.objects.count() == 1


def test_a_view_with_upload_handlers_of_its_own_says_what_counts(rf: RequestFactory) -> None:
    """Its form cannot be read before the view runs: Django tells that, and `fingerprint=` is the cure."""

    def sets_handlers(request: Any) -> HttpResponse:
        request.upload_handlers = [*request.upload_handlers]
        return HttpResponse(request.FILES["f"].read())

    def request() -> Any:
        return rf.post("/", {"f": SimpleUploadedFile("f", b"content")}, headers={"Idempotency-Key": "k"})

    with pytest.raises(AttributeError, match="You cannot set the upload handlers after"):
        idempotent(sets_handlers)(request())
    assert idempotent(fingerprint=lambda request: b"")(sets_handlers)(request()).content == b"content"


def test_an_uploaded_file_is_rewound(rf: RequestFactory, settings: Any) -> None:
    """The view reads it from the start, from memory and from disk."""
    for limit in (0, 1_000):
        settings.FILE_UPLOAD_MAX_MEMORY_SIZE = limit
        request = rf.post("/", {"file": SimpleUploadedFile("six.txt", b"sixsix")})
        of(request)
        assert request.FILES["file"].read() == b"sixsix"
        request.close()


@pytest.mark.parametrize("csrf_parsed", [False, True])
def test_the_parameters_of_a_files_type_are_part_of_the_request(rf: RequestFactory, csrf_parsed: bool) -> None:
    """The name of the file is a part, too. The charset counts, because a view decodes the file by it."""

    def seen(type_: bytes, boundary: bytes, name: bytes = b"a") -> Any:
        head = b'--%s\r\nContent-Disposition: form-data; name="f"; filename="%s"\r\nContent-Type: %s\r\n\r\n'
        body = head % (boundary, name, type_) + b"hi\r\n--%s--\r\n" % boundary
        request = rf.generic("POST", "/", body, content_type=f"multipart/form-data; boundary={boundary.decode()}")
        if csrf_parsed:
            assert request.POST == {}
        return of(request)

    kinds = [b"text/html", b"text/plain", b"text/plain; charset=utf-7", b"text/plain; charset=utf-7; x=1"]
    assert len({seen(kind, b"B") for kind in kinds}) == 4
    assert seen(kinds[3], b"B", b"another name") != seen(kinds[3], b"B")
    assert seen(kinds[3], b"B") == seen(kinds[3], b"C")


@pytest.mark.parametrize("encoding", ["gzip", "X-GZIP"])
def test_what_a_middleware_has_decompressed_may_have_another_length(rf: RequestFactory, encoding: str) -> None:
    """It replaces the stream, and leaves the headers."""
    headers: Any = {"Content-Encoding": encoding}
    request: Any = rf.generic("POST", "/", b"sixsix", headers=headers)
    request._stream = BytesIO(b"six")
    assert of(request)
    packed = gzip.compress(b"six")
    request = rf.generic("POST", "/", packed, headers=headers)
    request._body = gzip.decompress(request.body)
    assert of(request)


READERS = [payload_of, parsed_as(lambda: {"a": 1})]


@pytest.mark.parametrize("read", READERS, ids=["Django", "a framework"])
def test_a_body_that_django_does_not_read_is_413(rf: RequestFactory, settings: Any, read: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1
    request = rf.post("/", b'{"a":1}', content_type=JSON)
    with pytest.raises(Refused) as refused:
        fingerprint_of(request, resolve(), request, read)
    assert (refused.value.problem.status, refused.value.problem.code) == (413, "body-too-large")


@pytest.mark.parametrize("read", READERS, ids=["Django", "a framework"])
def test_a_truncated_body_that_was_never_compressed_is_refused(rf: RequestFactory, read: Any) -> None:
    """Even if its header claims compression: the stream is still the original one, and has counted the bytes."""
    sent: Any = {"headers": {"Content-Encoding": "gzip"}, "wsgi.input": BytesIO(b'{"a":')}
    request = rf.generic("POST", "/", b'{"a":1}', content_type=JSON, **sent)
    with pytest.raises(BadRequest, match="ended before its Content-Length"):
        fingerprint_of(request, resolve(), request, read)


def test_a_parsed_form_with_an_object_says_what_is_to_be_done(rf: RequestFactory) -> None:
    """A form has no other bytes to compare."""
    request = rf.post("/", {"a": "1"})
    with pytest.raises(TypeError, match=r"<object object .*cannot be compared with a retry's\. Pass fingerprint=\."):
        fingerprint_of(request, resolve(), request, parsed_as(lambda: {"a": object()}))


def test_bytes_of_a_patch_that_are_no_text_are_told_apart(rf: RequestFactory) -> None:
    """The view may read them, although Django's parser would replace both. A file holds any bytes."""

    def patched(value: bytes, name: str = "") -> bytes:
        head = b'--B\r\nContent-Disposition: form-data; name="f"' + (f'; filename="{name}"'.encode() if name else b"")
        body = head + b"\r\n\r\n" + value + b"\r\n--B--\r\n"
        return of(rf.generic("PATCH", "/", body, content_type="multipart/form-data; boundary=B"))

    assert patched(b"\xff") != patched(b"\xfe")
    assert patched(b"\xff", "a") != patched(b"\xfe", "a")
    assert patched("é".encode()) == patched("é".encode())
