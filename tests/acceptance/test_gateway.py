"""The shop's payments with a gateway that misbehaves: one charge and one payment in the end, or a clear refusal."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.acceptance.conftest import RunningShop
from tests.servers import eventually, http_post


class Payment:
    """One order, and the payment for it under one key."""

    def __init__(self, shop: RunningShop, behaviour: str) -> None:
        self.shop, self.key = shop, str(uuid4())
        self.order = shop.one("INSERT INTO shop_order (item, quantity, created_at) VALUES ('a', 1, now()) RETURNING id")
        self.reference = f"order {self.order}"
        told = shop.gateway.put("/behaviour", json={"reference": self.reference, "behaviour": behaviour})
        told.raise_for_status()

    def send(self) -> httpx.Response:
        return http_post(
            f"{self.shop.url}/payments/",
            json={"order": self.order, "amount": 1000},
            headers={"Idempotency-Key": self.key},
        )

    def books(self) -> tuple[int, int]:
        """Charges at the gateway, and payments in the shop."""
        charges = self.shop.gateway.get("/charges", params={"reference": self.reference}).json()["charges"]
        return len(charges), self.shop.one("SELECT count(*) FROM shop_payment WHERE order_id = %s", self.order)


def test_a_refusal_is_an_answer(shop: RunningShop) -> None:
    """It is kept: the retry does not ask the gateway again."""
    payment = Payment(shop, "refuse")
    first, again = payment.send(), payment.send()
    assert (first.status_code, again.status_code) == (402, 402)
    assert (again.headers["Idempotency-Replayed"], again.content) == ("true", first.content)
    assert payment.books() == (0, 0)


@pytest.mark.parametrize(
    ("behaviour", "charged"), [("error", 0), ("timeout-before", 0), ("timeout-after", 1)], ids=lambda value: str(value)
)
def test_no_clear_answer_is_an_error_and_the_retry_pays_once(shop: RunningShop, behaviour: str, charged: int) -> None:
    """Whether the money has moved or not: the gateway gets the same key again."""
    payment = Payment(shop, behaviour)
    assert payment.send().status_code == 500
    assert payment.books() == (charged, 0)
    paid = payment.send()
    assert (paid.status_code, paid.headers["Idempotency-Replayed"]) == (201, "false")
    assert payment.send().content == paid.content
    assert payment.books() == (1, 1)


def test_a_gateway_that_hangs_charges_once(shop: RunningShop) -> None:
    """The shop gives up, the client retries meanwhile, and then the gateway wakes up."""
    payment = Payment(shop, "hang")
    assert payment.send().status_code == 500
    assert payment.send().status_code == 500  # the gateway: this key is running
    assert payment.books() == (0, 0)
    shop.gateway.post("/release").raise_for_status()

    def final() -> Any:
        answer = payment.send()
        return answer if answer.status_code == 201 else None

    paid = eventually("the payment", final)
    assert payment.send().content == paid.content
    assert payment.books() == (1, 1)
