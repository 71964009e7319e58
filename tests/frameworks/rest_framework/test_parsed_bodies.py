"""A body is parsed once, by the view's own parser, and compared as that parser has read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test.client import encode_multipart
from django.urls import path

pytest.importorskip("rest_framework")

from rest_framework import parsers, permissions
from rest_framework.views import APIView

from django_idempotency import idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order
from tests.views import creates, view_class

CALLS: list[str] = []
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


def counted(base: type[parsers.BaseParser]) -> Any:
    class Counted(base):  # type: ignore[misc,valid-type]
        def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
            CALLS.append(self.media_type)
            return super().parse(stream, media_type, parser_context)

    return Counted


def parser(kind: str, read: Callable[[Any], Any]) -> Any:
    """A parser of this media type."""

    def parse(self: Any, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return read(stream)

    return type("Parser", (parsers.BaseParser,), {"media_type": kind, "parse": parse})


def aliases(stream: Any) -> Any:
    """Lists that share their items, as aliases of YAML do: `9 6` is 9 lists of 9 lists …, six deep."""
    width, depth = stream.read().split()
    value: Any = "x"
    for _ in range(int(depth)):
        value = [value] * int(width)
    return value


def nested(stream: Any) -> Any:
    """Nests deeper than a program can walk, or returns what has no value."""
    value: Any = [stream.read().decode()]
    if value == ["object"]:
        return object()
    for _ in range(100_000):
        value = [value]
    return value


def reads(request: Any) -> Any:
    assert request.data is not None
    return creates()(request)


class Orders(view_class(IdempotencyMixin, APIView, post=reads)):
    authentication_classes = []
    parser_classes = [
        *map(counted, (parsers.JSONParser, parsers.FormParser, parsers.MultiPartParser)),
        counted(
            parser(
                "application/xml", lambda stream: {item.tag: item.text for item in ElementTree.parse(stream).getroot()}
            )
        ),
        parser("application/x-aliases", aliases),
        parser("application/raw", lambda stream: {}),  # leaves it to the view
        parser("application/wrapped+json", lambda stream: json.load(stream).get("payload", {})),
        parser("application/nested", nested),
    ]


class Looks(permissions.BasePermission):
    """Looks at the parsed body before the handler does: then the stream has been read."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return request.data is not None


class ByField(APIView):
    permission_classes = [Looks]
    post = idempotent(fingerprint=("a",))(Orders.post)


urlpatterns = [
    path("orders", Orders.as_view()),
    path("guarded", type("Guarded", (Orders,), {"permission_classes": [Looks]}).as_view()),
    path("field", ByField.as_view()),
]


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
        (JSON, '{"a":1}', '{"a":1.0}', 201),
        (JSON, '{"a":1}', '{"a":1.1}', 422),
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
    """Only `a` counts. From a form, a serializer reads it in parts."""
    assert send('{"a":1,"b":1}', '{"a":1,"b":2}', '{"a":2,"b":1}', path="/field") == [201, 201, 422]


def test_the_parts_of_a_field_are_chosen_with_it(send: Any) -> None:
    assert send("a[0]=1&b=1", "a[0]=1&b=2", "a[0]=2&b=1", content_type=FORM, path="/field") == [201, 201, 422]


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
