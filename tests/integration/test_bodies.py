"""Where a body is kept while it is compared."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse
from django.http.request import RawPostDataException
from django.test import AsyncRequestFactory, RequestFactory
from django_idempotency.engine.request.bodies import open_body

from django_idempotency import idempotent
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.request.fingerprints import fingerprint_of
from tests.http import replayed
from tests.integration import view_urls


@pytest.mark.parametrize(("limit", "in_memory"), [(0, False), (5, False), (6, True)])
def test_more_than_the_limit_goes_to_the_projects_folder(
    rf: RequestFactory, settings: Any, tmp_path: Path, limit: int, in_memory: bool
) -> None:
    """FILE_UPLOAD_MAX_MEMORY_SIZE = 0 keeps nothing in memory; FILE_UPLOAD_TEMP_DIR says where else."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = limit
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    request = rf.generic("POST", "/", b"sixsix")
    with open_body(request) as body:
        assert body is not None
        kept: Any = body
        assert isinstance(kept, BytesIO) is in_memory
        assert in_memory or kept._rolled
    assert request.body == b"sixsix"


@pytest.mark.parametrize("limit", [0, 6])
def test_a_body_is_read_once(rf: RequestFactory, settings: Any, limit: int) -> None:
    """The REST framework's adapter opens the body twice, whether it is in memory or on disk."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = limit
    request = rf.generic("POST", "/", b"sixsix")
    with open_body(request) as first:
        pass
    with open_body(request) as second:
        assert second is first


def test_a_file_is_closed_with_its_request(rf: RequestFactory, settings: Any) -> None:
    """Left to the garbage collector, large files would pile up."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 0
    request = rf.generic("POST", "/", b"sixsix")
    with open_body(request) as body:
        assert body is not None
        assert not body.closed
    request.close()
    assert body.closed


def test_the_views_uploads_are_closed_with_the_request(rf: RequestFactory, settings: Any) -> None:
    """As Django does it: the request's own `close` runs, too."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 0
    request = rf.post("/", {"file": SimpleUploadedFile("six.txt", b"sixsix")})
    with open_body(request):
        pass
    upload = request.FILES["file"]
    assert (upload.read(), upload.closed) == (b"sixsix", False)
    request.close()
    assert upload.closed


@pytest.mark.parametrize("limit", [0, 6])
def test_a_parser_that_closes_the_stream_ends_nothing(rf: RequestFactory, settings: Any, limit: int) -> None:
    """The view may read the body again, from memory or from disk."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = limit
    request = rf.generic("POST", "/", b"sixsix")
    for _ in range(2):
        with open_body(request) as body:
            assert body is not None
            assert body.read() == b"sixsix"
            body.close()


@pytest.mark.django_db
def test_a_second_try_with_the_same_request_has_the_whole_body(rf: RequestFactory) -> None:
    """A decorator above ours may call the view again: after an answer that is not final the view runs again."""
    bodies = []

    @idempotent(scope=lambda request: "s")
    def view(request: Any) -> HttpResponse:
        bodies.append(request.read())
        return HttpResponse(status=503 if len(bodies) == 1 else 201)

    request = rf.generic("POST", "/", b"sixsix", headers={"Idempotency-Key": "k"})
    answers = [view(request) for _ in range(3)]
    assert [(a.status_code, replayed(a)) for a in answers] == [(503, "false"), (201, "false"), (201, "true")]
    assert bodies == [b"sixsix", b"sixsix"]


def test_the_stream_is_closed_when_it_was_read(async_rf: AsyncRequestFactory) -> None:
    """As by `request.body`. Under ASGI it is a file of Django's, and a large upload would be kept twice."""
    request: Any = async_rf.generic("POST", "/", b"sixsix")
    stream = request._stream
    with open_body(request):
        assert stream.closed


def test_a_closed_request_counts_as_read(rf: RequestFactory, settings: Any) -> None:
    """Django says that the body cannot be read again, in place of an error about a closed file."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 0
    request = rf.generic("POST", "/", b"sixsix")
    with open_body(request):
        pass
    request.close()
    with open_body(request) as body:
        assert body is None
    with pytest.raises(RawPostDataException):
        request.body  # noqa: B018


def test_a_small_body_outlives_its_request(rf: RequestFactory) -> None:
    """A body in memory holds nothing that has to be closed."""
    request = rf.generic("POST", "/", b"sixsix")
    with open_body(request):
        pass
    request.close()
    assert request.body == b"sixsix"


def test_an_unknown_folder_is_an_error_only_for_what_needs_it(rf: RequestFactory, settings: Any) -> None:
    """The folder of the setting is the one that is used."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 1
    settings.FILE_UPLOAD_TEMP_DIR = "/nowhere/at/all"
    with pytest.raises(FileNotFoundError), open_body(rf.generic("POST", "/", b"sixsix")):
        pass


def test_a_truncated_body_is_refused_before_the_claim(rf: RequestFactory) -> None:
    """A server hands over what it got before the client hung up; the retry in full must not meet it as a mismatch."""
    request = rf.generic("POST", "/", b"six", **{"CONTENT_LENGTH": "6", "wsgi.input": BytesIO(b"six")})
    with pytest.raises(BadRequest, match="ended before its Content-Length"), open_body(request):
        pass


def test_a_middlewares_stream_may_be_shorter(rf: RequestFactory) -> None:
    """One that decompresses replaces the stream, not the Content-Length."""
    request: Any = rf.generic("POST", "/", b"sixsix")
    request._stream = BytesIO(b"six")
    with open_body(request) as body:
        assert body is not None
        assert body.read() == b"six"


@pytest.mark.parametrize("fault", ["too many files", "a bad part"])
def test_a_parser_that_gives_up_after_a_file_leaves_the_body_to_the_view(rf: RequestFactory, fault: str) -> None:
    """It closes the files it has got: whether the body is acceptable is for the view to say, not a 500 of ours."""
    part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="f"\r\n%s\r\n%s\r\n'
    bad = part % (b"Content-Transfer-Encoding: base64\r\n", b"A===")
    body = part % (b"", b"q") * (101 if fault == "too many files" else 1) + bad + b"--x--\r\n"
    request = rf.generic("POST", "/", body, content_type="multipart/form-data; boundary=x")
    options = resolve()
    first = fingerprint_of(request, options, request)
    assert first == fingerprint_of(request, options, request)
    other = rf.generic("POST", "/", body + b" ", content_type="multipart/form-data; boundary=x")
    assert first != fingerprint_of(other, options, other)
    assert request.read() == body


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        (
            "application/json",
            b'{"b": [1, 2.50, "\xc3\xa4"], "a": null}',
            "ed3c18ab74d8a389b785599dcb4585af66f5f41fae1d0e0f9ae376f656211a11",
        ),
        (
            "application/x-www-form-urlencoded",
            b"b=2&a=1&b=1&csrfmiddlewaretoken=t",
            "ad18bac5ddb35fc4bc7bb0df10d377bef72900ec0ca7fb0394ddf1d0841088f2",
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="f"; filename="f.txt"\r\nContent-Type: text/plain\r\n\r\n'
            b'content\r\n--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
            "1e4a7b65e5ed22259fc860bfc1401faa9c6353639750df62fb59f990861e5323",
        ),
        ("text/plain", b"anything", "7ca5e19ee3b7ae7ca4d7c0189d28b29d754baa8729adaa1fdd3788dd625023cf"),
        ("", b"", "9afbc6679241df1ca0c8025ad9c02f2bb646e32ef8e12f3da3b972f62b313194"),
    ],
    ids=["json", "form", "multipart", "bytes", "nothing"],
)
def test_they_stay_the_same_from_release_to_release(rf: Any, content_type: str, body: bytes, expected: str) -> None:
    """A retry across an upgrade is refused by new numbers: they need a new version in the digest, and a changelog."""
    request = rf.generic("POST", "/orders/?a=1", body, content_type=content_type)
    fingerprint = fingerprint_of(request, resolve(), request)
    assert fingerprint is not None
    assert fingerprint.hex() == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
def test_json_is_compared_by_value_in_each_of_its_encodings(rf: Any, encoding: str) -> None:
    """The fingerprint is that of the same JSON in UTF-8, as in the test above."""
    body = '{"b": [1, 2.50, "ä"], "a": null}'.encode(encoding)
    request = rf.generic("POST", "/orders/?a=1", body, content_type="application/json")
    fingerprint = fingerprint_of(request, resolve(), request)
    assert fingerprint is not None
    assert fingerprint.hex() == "ed3c18ab74d8a389b785599dcb4585af66f5f41fae1d0e0f9ae376f656211a11"


Post = Callable[..., Any]


@pytest.mark.django_db
@pytest.mark.urls("tests.integration.view_urls")
@pytest.mark.parametrize("path", ["/read_raw", "/read_body"])
@pytest.mark.parametrize(
    ("content_type", "size"), [("application/octet-stream", 2_000_000), ("application/json", 2_000_000)]
)
def test_views_read_their_bodies_as_ever(post: Post, path: str, content_type: str, size: int) -> None:
    """request.read() and request.body find everything."""
    body = b'"' + b"x" * (size - 2) + b'"'
    for expected in ("false", "true"):
        response = post(path, body, content_type=content_type)
        assert (response.content, replayed(response)) == (b"2000000", expected)


@pytest.mark.django_db
@pytest.mark.urls("tests.integration.view_urls")
def test_a_large_raw_body_is_no_problem(post: Post) -> None:
    """Django's limit is on request.body, not on request.read()."""
    body = b'{"a": "' + b"x" * 3_000_000 + b'"}'
    assert [post("/read_raw", body).content for _ in range(2)] == [b"3000009"] * 2
    assert post("/read_body", body).status_code == 400  # RequestDataTooBig, as without us


@pytest.mark.django_db
@pytest.mark.urls("tests.integration.view_urls")
@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json"])
def test_one_request_may_be_handed_to_a_view_twice(rf: Any, content_type: str) -> None:
    """As tests do. The second call replays, although the first has read the stream to its end."""
    request = rf.post("/", b'"abc"', content_type=content_type, headers={"Idempotency-Key": "k"})
    answers = [view_urls.read_raw(request) for _ in range(2)]
    assert [(answer.content, replayed(answer)) for answer in answers] == [(b"5", "false"), (b"5", "true")]


@pytest.mark.django_db
def test_a_view_that_runs_twice_finds_the_body_twice(rf: Any) -> None:
    """Its first answer was not final, so nothing is replayed."""
    view = idempotent(record=lambda response: False)(lambda request: HttpResponse(request.read()))
    request = rf.post("/", b"abc", content_type="text/plain", headers={"Idempotency-Key": "k"})
    assert [view(request).content for _ in range(2)] == [b"abc", b"abc"]
