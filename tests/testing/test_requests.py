"""What `assert_idempotent` sends: bodies, keys, cookies, signatures."""

from __future__ import annotations

import hmac
import io
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, override_settings

from django_idempotency import idempotent
from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Order
from tests.testing import endpoint_urls
from tests.testing.endpoint_urls import DATA, order
from tests.views import creates, paths

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.test_requests")]
SECRET = b"shared with the sender"


def visitor(request: HttpRequest) -> HttpResponse:
    """Starts a session: a retry of a lost answer does not carry its cookie."""
    request.session["orders"] = 1
    return order(request)


def files(request: HttpRequest, order: Order) -> HttpResponse:
    return JsonResponse({name: [f.name, f.content_type, f.size] for name, f in request.FILES.items()})


def event_id(request: HttpRequest) -> str | None:
    try:
        return str(json.loads(request.body)["id"])
    except ValueError:
        return None


def by_event(request: HttpRequest) -> HttpResponse:
    """Checks the signature of time and body first."""
    if request.headers.get("Stripe-Signature") != signature(request.body):
        return HttpResponse(status=401)
    return idempotent(key=event_id, operation="event")(order)(request)


def signature(body: bytes) -> str:
    """Of the bytes and the time, as Stripe makes it."""
    return f"t=1700000000,v1={hmac.new(SECRET, b'1700000000.' + body, 'sha256').hexdigest()}"


urlpatterns = endpoint_urls.urlpatterns + paths(
    by_event,
    visitor=idempotent(visitor),
    upload=idempotent(creates(then=files)),
    raw=idempotent(creates(then=lambda request, order: HttpResponse(request.body))),
    by_field=idempotent(key=lambda request: request.POST.get("event"))(order),
)


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
    """The body and its signature."""
    body = json.dumps({"id": f"evt_{key}", "amount": amount}).encode()
    return {"data": body, "content_type": "application/json", "headers": {"Stripe-Signature": signature(body)}}


def test_the_key_is_in_a_signed_body(client: Client) -> None:
    """As a webhook's. Another body under the same key is given as a function, because it is signed too."""
    assert_idempotent(client, "/by_event", with_key=event, changed=lambda key: event(key, 2), creates=Order)
    assert Order.objects.count() == 1
    with pytest.raises(AssertionError, match="mismatch accepted"):
        assert_idempotent(client, "/by_event", with_key=event, changed=event, creates=Order)
    with pytest.raises(AssertionError, match="was refused with 401, but not because of the key"):
        assert_idempotent(client, "/by_event", with_key=event, creates=Order)
