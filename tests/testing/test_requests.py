"""What `assert_idempotent` sends: bodies, keys, cookies, signatures."""

from __future__ import annotations

import hmac
import io
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, override_settings

from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Order
from tests.testing import endpoint_urls
from tests.testing.endpoint_urls import DATA

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]


def test_an_optional_key(client: Client) -> None:
    """Is said, or is the project's default."""
    assert_idempotent(client, "/optional", DATA, creates=Order, required=False)
    with override_settings(IDEMPOTENCY={"REQUIRED": False}):
        assert_idempotent(client, "/good", DATA, creates=Order)
    assert Order.objects.count() == 2


def test_a_key_that_comes_in_the_body(client: Client) -> None:
    """with_key puts it there. Bytes have no fields."""
    assert_idempotent(client, "/by_field", DATA, creates=Order, with_key=lambda key: {"data": {"event": key}})
    assert_idempotent(client, "/by_field", creates=Order, with_key=lambda key: {"data": {"event": key}})
    assert Order.objects.count() == 2
    with pytest.raises(TypeError, match=r"cannot be merged with b'x'\. Use dicts\."):
        assert_idempotent(client, "/raw", b"x", content_type="x/y", with_key=lambda key: {"data": {"event": key}})


def test_a_key_in_another_header(client: Client) -> None:
    """With the headers that the request needs anyway."""
    assert_idempotent(
        client, "/by_header", headers={"X-Shop": "1"}, with_key=lambda key: {"headers": {"X-Event": f"e-{key}"}}
    )
    assert_idempotent(client, "/by_header", with_key=lambda key: {"HTTP_X_EVENT": key})


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        ({"a": [1, True, None, {"b": 1.5}], "c": "", "d": {}}, "application/json"),
        ([1, 2], "application/json"),
        (b'{"a": null}', "application/json"),
        ("plain", "text/plain"),
        (b"\xff\x00", "application/octet-stream"),
        (None, "application/json"),
    ],
)
def test_any_body_is_sent_unchanged_and_changed(client: Client, data: Any, content_type: str) -> None:
    """JSON values and their text, other text, bytes, nothing."""
    assert_idempotent(client, "/raw", data, content_type=content_type, creates=Order)


@pytest.mark.parametrize(
    ("file", "content_type"),
    [
        (SimpleUploadedFile("a.pdf", b"abc", content_type="image/png"), "image/png"),
        (io.StringIO("abc"), "application/octet-stream"),
    ],
)
def test_files_are_sent_whole_every_time(client: Client, file: Any, content_type: str) -> None:
    """A test client reads a file to its end; with another content it is another request."""
    file.read()
    response = assert_idempotent(client, "/upload", {"file": file}, creates=Order)
    assert response.json()["file"][1:] == [content_type, 3]


def test_each_retry_carries_the_first_requests_cookies(client: Client) -> None:
    """The answer that set a session was lost."""
    assert_idempotent(client, "/visitor", DATA, creates=Order)
    assert not client.cookies


def event(key: str, amount: int = 1) -> dict[str, Any]:
    """The body and a signature of its bytes and the time, as Stripe makes it."""
    body = json.dumps({"id": f"evt_{key}", "amount": amount}).encode()
    mac = hmac.new(endpoint_urls.SECRET, b"1700000000." + body, "sha256").hexdigest()
    headers = {"Stripe-Signature": f"t=1700000000,v1={mac}"}
    return {"data": body, "content_type": "application/json", "headers": headers}


def test_the_key_is_in_a_signed_body(client: Client) -> None:
    """As a webhook's. Another body under the same key is given as a function, because it is signed too."""
    assert_idempotent(client, "/by_event", with_key=event, changed=lambda key: event(key, 2), creates=Order)
    assert Order.objects.count() == 1
    with pytest.raises(AssertionError, match="mismatch accepted"):
        assert_idempotent(client, "/by_event", with_key=event, changed=event, creates=Order)
    with pytest.raises(AssertionError, match="was refused with 401, but not because of the key"):
        assert_idempotent(client, "/by_event", with_key=event, creates=Order)
