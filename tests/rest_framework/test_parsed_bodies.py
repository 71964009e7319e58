"""A body is parsed once, by the view's own parser, and compared as that parser has read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test.client import encode_multipart

from tests.shopapp.models import Order

pytest.importorskip("rest_framework")

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.rest_framework.parsing_urls")]
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


@pytest.fixture
def send(client: Any) -> Callable[..., list[int]]:
    """The statuses of these bodies under one key: 201 is the first answer or its replay, 422 another request."""

    def statuses(*bodies: bytes | str, content_type: str = JSON, path: str = "/orders") -> list[int]:
        headers = {"Idempotency-Key": "k"}
        sent = [client.generic("POST", path, body, content_type=content_type, headers=headers) for body in bodies]
        assert Order.objects.count() == 1
        return [response.status_code for response in sent]

    return statuses


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b'{"a":1}'),
        (FORM, b"a=1"),
        (f"{MULTIPART}; boundary=x", encode_multipart("x", {"a": "1", "f": SimpleUploadedFile("f", b"1")})),
        ("application/xml", b"<o><a>1</a></o>"),
    ],
)
def test_a_body_is_parsed_once(send: Any, monkeypatch: pytest.MonkeyPatch, content_type: str, body: bytes) -> None:
    """By the view's parser. The package's own parsers are not asked."""
    from tests.rest_framework.parsing_urls import CALLS

    monkeypatch.delattr("django_idempotency.engine.request.fingerprints._value")
    CALLS.clear()
    assert send(body, content_type=content_type) == [201]
    assert " ".join(CALLS) == content_type.partition(";")[0]


@pytest.mark.parametrize(
    ("content_type", "one", "two", "status"),
    [
        (JSON, '{"a":1,"b":[1.5]}', '{ "b" : [1.50], "a":1}', 201),
        (JSON, '{"a":1.5}', '{"a":"1.5"}', 422),
        (JSON, '{"a":1.5}', '{"a":"\\u00001.5"}', 422),
        (JSON, '{"a":1}', '{"a":1.0}', 422),
        (JSON, '{"a":2}', '{"a":1,"a":2}', 201),  # the view sees the last of two equal names
        (JSON, '{"a":1,"a":2}', '{"a":1}', 422),
        (FORM, "a=1&b=2&csrfmiddlewaretoken=x", "b=2&a=1&csrfmiddlewaretoken=y", 201),
        (FORM, "csrfmiddlewaretoken=x", "csrfmiddlewaretoken=y", 201),
        (FORM, "a=1&a=2", "a=2&a=1", 422),
    ],
)
@pytest.mark.parametrize("path", ["/orders", "/guarded"])
def test_the_parser_decides_what_is_equal(
    send: Any, path: str, content_type: str, one: str, two: str, status: int
) -> None:
    """What the view cannot tell apart is one request; what it can is two. A permission may have read it before."""
    assert send(one, two, content_type=content_type, path=path) == [201, status]


@pytest.mark.parametrize("path", ["/orders", "/guarded"])
def test_files_are_compared_by_their_content(send: Any, path: str) -> None:
    """Also if the form has been read before."""
    forms = [encode_multipart("x", {"a": "1", "f": SimpleUploadedFile("f", content)}) for content in (b"1", b"1", b"2")]
    assert send(*forms, content_type=f"{MULTIPART}; boundary=x", path=path) == [201, 201, 422]


def test_fields_are_chosen_from_what_was_read(send: Any) -> None:
    """Only `a` counts."""
    assert send('{"a":1,"b":1}', '{"a":1,"b":2}', '{"a":2,"b":1}', path="/field") == [201, 201, 422]


@pytest.mark.parametrize(
    ("content_type", "one", "two"),
    [
        ("application/raw", "one", "two"),
        ("application/xml", "<o><a>1</a></o>", "<o> <a>1</a></o>"),
        ("application/wrapped+json", '{"payload":{"a":1}}', '{"a":1}'),
        ("application/wrapped+json", '{"a":1}', '{"a":2}'),
        ("application/nested", "one", "two"),
        ("application/nested", "object", "object "),
    ],
)
def test_what_the_parser_has_no_value_for_is_compared_by_its_bytes(
    send: Any, content_type: str, one: str, two: str
) -> None:
    """It is neither JSON nor a form, or the parser returns nothing for a body that is not empty."""
    assert send(one, one, two, content_type=content_type) == [201, 201, 422]


def test_a_body_that_stands_for_millions_is_compared_by_its_bytes(send: Any) -> None:
    """A few bytes of YAML are as heavy as one likes, by its aliases."""
    assert send("9 6", "9 6", "9  6", content_type="application/x-aliases") == [201, 201, 422]


@pytest.mark.parametrize(("length", "status"), [(131_000, 201), (132_000, 422)])
@pytest.mark.parametrize(
    ("content_type", "one", "two"), [(JSON, '{"a":1,"b":"%s"}', '{"b":"%s","a":1}'), (FORM, "a=1&b=%s", "b=%s&a=1")]
)
def test_a_large_body_is_compared_by_its_bytes(
    send: Any, content_type: str, one: str, two: str, length: int, status: int
) -> None:
    """From 128 KiB on: to compare the values of a hostile form would cost many times its size."""
    text = "x" * length
    assert send(one % text, one % text, two % text, content_type=content_type) == [201, 201, status]
