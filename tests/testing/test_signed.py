"""Receivers of webhooks: the sender signs the bytes, and the key is in a header or in the body."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest
from django.test import Client, override_settings

from django_idempotency.testing import assert_idempotent
from tests.shopapp.models import Order
from tests.testing import endpoint_urls

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]


def signature(body: bytes, key: str) -> dict[str, str]:
    """Of the bytes and the time, as Stripe makes it."""
    mac = hmac.new(endpoint_urls.SECRET, b"1700000000." + body, "sha256").hexdigest()
    return {"Stripe-Signature": f"t=1700000000,v1={mac}"}


def event(key: str) -> bytes:
    return json.dumps({"id": f"evt_{key}", "amount": 1}).encode()


def test_the_key_is_in_the_signed_body(client: Client) -> None:
    """Another body under the same key keeps the id, and is signed too."""
    assert_idempotent(client, "/by_event", with_key=event, sign=signature, creates=Order)
    assert Order.objects.count() == 1


def test_another_body_is_given_as_a_function(client: Client) -> None:
    """The first run in its place is refused."""

    def another(key: str) -> bytes:
        return event(key).replace(b"1}", b"2}")

    assert_idempotent(client, "/by_event", with_key=event, sign=signature, changed=another, creates=Order)
    with pytest.raises(AssertionError, match="mismatch accepted"):
        assert_idempotent(client, "/by_event", with_key=event, sign=signature, changed=event, creates=Order)


def test_the_key_is_in_a_signed_header(client: Client) -> None:
    """Data is sent as JSON, with the fields of with_key; the library of Standard Webhooks signs id, time and body."""
    webhooks = pytest.importorskip("standardwebhooks")
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

    def sign(body: bytes, key: str) -> dict[str, Any]:
        now = endpoint_urls.now()
        text = webhooks.Webhook(secret).sign(key, now, body.decode())
        return {"webhook-id": key, "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": text}

    with override_settings(WEBHOOK_SECRET=secret):
        for data, with_key in (({"item": "a book"}, None), ('{"item": 1}', lambda key: {}), (None, lambda key: {})):
            assert_idempotent(client, "/standard", data, with_key=with_key, sign=sign, creates=Order)
    assert Order.objects.count() == 3


def test_a_wrong_signature_is_the_tests_to_see(client: Client) -> None:
    """The endpoint's own refusal is shown."""
    with pytest.raises(AssertionError, match="the first request was answered with 401"):
        assert_idempotent(client, "/by_event", with_key=event, sign=lambda body, key: {}, creates=Order)


def test_a_whole_body_leaves_no_place_for_data(client: Client) -> None:
    """Nothing is sent."""
    with pytest.raises(TypeError, match=r"with_key= gives the whole body, so leave data out\. It is \{'a': 1\}"):
        assert_idempotent(client, "/by_event", {"a": 1}, with_key=event)


def test_a_body_that_is_no_json(client: Client) -> None:
    """Text that holds the key stays as it is, so another body must be given."""
    arguments: dict[str, Any] = {"sign": signature, "content_type": "text/plain"}
    text = "the first event: "
    assert_idempotent(
        client,
        "/by_event",
        with_key=lambda key: f"{text}{key}".encode(),
        changed=lambda key: f"another event: {key}".encode(),
        **arguments,
    )
