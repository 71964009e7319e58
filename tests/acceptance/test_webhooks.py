"""The shop's webhook receivers, and the library that signs for them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.acceptance.conftest import SECRET, RunningShop
from tests.servers import http_post

standardwebhooks = pytest.importorskip("standardwebhooks")

RECEIVERS = pytest.mark.parametrize("path", ["/webhooks/", "/webhooks/decorated/"])
ORDERS = "SELECT count(*) FROM shop_order WHERE item = %s"


class Provider:
    """Sends one event, as often as it takes."""

    def __init__(self, shop: RunningShop, path: str) -> None:
        self.shop, self.path = shop, path
        self.id = f"msg_{uuid4().hex}"
        self.item = f"item {self.id}"

    def deliver(self, *, item: str | None = None, **headers: str) -> httpx.Response:
        body = json.dumps({"item": item or self.item})
        now = datetime.now(tz=UTC)
        signed: dict[str, Any] = {
            "webhook-id": self.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": standardwebhooks.Webhook(SECRET).sign(self.id, now, body),
        }
        return http_post(self.shop.url + self.path, content=body, headers={**signed, **headers})

    def orders(self) -> Any:
        return self.shop.one(ORDERS, self.item)


@RECEIVERS
def test_a_redelivery_is_acknowledged_without_doing_it_again(shop: RunningShop, path: str) -> None:
    """Three deliveries, one order, the same answer."""
    provider = Provider(shop, path)
    answers = [provider.deliver() for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert {answer.json()["order"] for answer in answers} == {answers[0].json()["order"]}
    assert provider.orders() == 1


@RECEIVERS
def test_a_signature_comes_first(shop: RunningShop, path: str) -> None:
    """Forged or changed: 401, and the key is still the provider's to use."""
    provider = Provider(shop, path)
    for headers in ({"webhook-signature": "v1,AAAA"}, {"webhook-id": "msg_other"}, {"webhook-timestamp": "1"}):
        assert provider.deliver(**headers).status_code == 401
    assert shop.one("SELECT count(*) FROM django_idempotency_idempotencykey WHERE key = %s", provider.id) == 0
    assert provider.deliver().status_code == 200
