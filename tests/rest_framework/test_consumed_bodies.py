"""A permission that looks at `request.data` has consumed the stream before the fingerprint is taken."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test.client import encode_multipart

from django_idempotency import IdempotencyConfigurationError
from tests.shopapp.models import Order

pytest.importorskip("rest_framework")

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.rest_framework.consuming_urls")]
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"


def a_form(content: bytes) -> bytes:
    return encode_multipart("x", {"a": "1", "file": SimpleUploadedFile("f", content)})


def send(client: Any, method: str, path: str, body: bytes, content_type: str) -> Any:
    return client.generic(method, path, body, content_type=content_type, headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize(("method", "path"), [("POST", "/mixin"), ("POST", "/decorator")])
@pytest.mark.parametrize(
    ("content_type", "one", "same", "other", "fields"),
    [
        ("application/json", b'{"a":1,"b":2}', b'{"b":2, "a":1}', b'{"a":1,"b":3}', ["a", "b"]),
        (FORM, b"a=1&b=2", b"b=2&a=1", b"a=2&b=2", ["a", "b"]),
        (MULTIPART, a_form(b"one"), a_form(b"one"), a_form(b"two"), ["a", "file"]),
    ],
)
def test_what_the_permission_parsed_is_compared(
    client: Any, method: str, path: str, content_type: str, one: bytes, same: bytes, other: bytes, fields: list[str]
) -> None:
    """By value; and the handler still has its data."""
    answers = [send(client, method, path, body, content_type) for body in (one, same, other)]
    marks = [(a.status_code, a.headers["Idempotency-Replayed"]) for a in answers]
    assert marks == [(201, "false"), (201, "true"), (422, "false")]
    assert answers[0].json() == {"fields": fields}
    assert Order.objects.count() == 1


def test_what_is_neither_json_nor_a_form_cannot_be_compared_any_more(client: Any) -> None:
    """Its parser may return any object. The error says that `fingerprint=` is the cure."""
    with pytest.raises(IdempotencyConfigurationError, match="pass fingerprint= to @idempotent"):
        send(client, "POST", "/mixin", b"one", "text/plain")
    assert Order.objects.count() == 0


def test_fields_are_chosen_from_it(client: Any) -> None:
    """Only `a` counts."""
    bodies = (b'{"a":1,"b":1}', b'{"a":1,"b":2}', b'{"a":2,"b":1}')
    answers = [send(client, "POST", "/field", body, "application/json") for body in bodies]
    assert [a.status_code for a in answers] == [201, 201, 422]
    assert Order.objects.count() == 1
