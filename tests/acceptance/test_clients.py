"""The documented clients against the shop: through a line that breaks, and with workers that die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.acceptance.conftest import RunningShop, running_shop
from tests.acceptance.documented_clients import Place, place_order
from tests.acceptance.lines import BrokenLine
from tests.servers import DEADLINE, eventually, fake_gateway, http_post

__all__ = ["place_order"]
LEFT = 6
"""Seconds of the lease that are left when the worker dies: much more than a client waits before its second attempt."""


@pytest.fixture(scope="module")
def patient_shop() -> Iterator[RunningShop]:
    """It waits for its gateway until it is killed."""
    pytest.importorskip("drf_spectacular")
    with fake_gateway() as gateway:
        yield from running_shop(gateway, PAYMENT_LEASE="600", GATEWAY_TIMEOUT="600")


def test_it_retries_until_there_is_an_answer(shop: RunningShop, place_order: Place) -> None:
    """The line is down, the answer is lost, 409 while the first is running: one order, and its id."""
    item = f"item {uuid4()}"
    line = BrokenLine(shop, "refuse", "lose")
    told: list[Any] = []
    with line.listening() as url, shop.holding() as release:
        thread = threading.Thread(target=lambda: told.append(place_order(url, str(uuid4()), {"item": item})))
        thread.start()
        eventually("the client to meet a conflict", lambda: 409 in line.statuses or not thread.is_alive())
        release()
        thread.join(DEADLINE)
    assert line.statuses[:3] == ["refused", "lost", 409]
    assert line.statuses[-1] == 201
    assert [answer["id"] for answer in told] == [shop.one("SELECT id FROM shop_order WHERE item = %s", item)]
    assert shop.one("SELECT count(*) FROM shop_order WHERE item = %s", item) == 1


def test_it_does_not_retry_what_is_final(shop: RunningShop, place_order: Place) -> None:
    """A key that was used for another order: one request, and the answer is told."""
    key = str(uuid4())
    http_post(f"{shop.url}/orders/", json={"item": "another"}, headers={"Idempotency-Key": key})
    line = BrokenLine(shop)
    with line.listening() as url:
        assert place_order(url, key, {"item": "a book"}) == "refused 422"
    assert line.statuses == [422]


class TestADeadWorker:
    """It is killed while the gateway charges: the key is busy until the lease is over."""

    @pytest.fixture
    def shop(self, patient_shop: RunningShop) -> RunningShop:
        return patient_shop

    @pytest.fixture
    def payment(self, shop: RunningShop) -> dict[str, int]:
        """Of an order whose first charge gets no answer."""
        order = http_post(f"{shop.url}/orders/", json={"item": "a book"}, headers={"Idempotency-Key": str(uuid4())})
        pk = order.json()["id"]
        shop.gateway.put("/behaviour", json={"reference": f"order {pk}", "behaviour": "timeout-after"})
        return {"order": pk, "amount": 1000}

    def charges(self, shop: RunningShop, payment: dict[str, int]) -> list[dict[str, Any]]:
        found = shop.gateway.get("/charges", params={"reference": f"order {payment['order']}"})
        charges: list[dict[str, Any]] = found.json()["charges"]
        return charges

    def kill(self, shop: RunningShop, payment: dict[str, int]) -> None:
        (charge,) = eventually("the charge", lambda: self.charges(shop, payment))
        with psycopg.connect(shop.dsn, autocommit=True) as database:
            database.execute(
                "UPDATE django_idempotency_idempotencykey SET locked_until = clock_timestamp() + %s * interval '1 s' "
                "WHERE status = 'in_progress'",
                [LEFT],
            )
        os.kill(int(charge["caller"].removeprefix("shop-")), signal.SIGKILL)

    def place(self, shop: RunningShop, payment: dict[str, int], place: Callable[[], Any]) -> Any:
        told: list[Any] = []
        thread = threading.Thread(target=lambda: told.append(place()))
        thread.start()
        self.kill(shop, payment)
        thread.join(2 * DEADLINE)
        return told[0]

    def test_the_client_outlives_the_lease(
        self, shop: RunningShop, payment: dict[str, int], place_order: Place
    ) -> None:
        """The conflict says when the lease will be over. One charge, one payment, no stuck key."""
        line, key = BrokenLine(shop), str(uuid4())
        with line.listening() as url:
            told = self.place(shop, payment, lambda: place_order(url, key, payment, "/payments/"))
        assert line.statuses == ["cut", 409, 201]
        (charge,) = self.charges(shop, payment)
        assert told["charge"] == charge["id"]
        assert shop.one("SELECT count(*) FROM shop_payment WHERE charge_id = %s", charge["id"]) == 1
        assert shop.one("SELECT status FROM django_idempotency_idempotencykey WHERE key = %s", key) == "completed"

    def test_a_client_that_gives_up_keeps_its_key(
        self, shop: RunningShop, payment: dict[str, int], place_order: Place
    ) -> None:
        """It had less time than the lease. With the same key it comes to the same end later."""
        key = str(uuid4())
        send = lambda seconds: place_order(shop.url, key, payment, "/payments/", seconds)  # noqa: E731
        assert self.place(shop, payment, lambda: send(LEFT / 2)) == "NotConfirmed"
        assert send(DEADLINE)["charge"] == self.charges(shop, payment)[0]["id"]
        assert len(self.charges(shop, payment)) == 1


class TestAStatusPage:
    @contextmanager
    def no_reports(self, shop: RunningShop) -> Iterator[Callable[[], None]]:
        """The view of a report stops at its write; gives what lets the view go on."""
        with psycopg.connect(shop.dsn) as holder:
            holder.execute("LOCK TABLE shop_report IN SHARE MODE")
            yield holder.close

    def order(self, shop: RunningShop) -> str:
        item = f"item {uuid4()}"
        http_post(f"{shop.url}/orders/", json={"item": item}, headers={"Idempotency-Key": str(uuid4())})
        return item

    def test_it_is_followed_while_another_request_is_at_work(self, shop: RunningShop, place_order: Place) -> None:
        """The package's 202, then the view's own, then the end of the task."""
        report, key = {"item": self.order(shop)}, str(uuid4())
        line, told = BrokenLine(shop), []
        first = BrokenLine(shop)
        with line.listening() as url, first.listening() as other, self.no_reports(shop) as release:
            send = {"json": report, "headers": {"Idempotency-Key": f'"{key}"'}}
            worker = threading.Thread(target=lambda: http_post(f"{other}/reports/", **send))
            worker.start()
            claimed = "SELECT count(*) FROM django_idempotency_idempotencykey WHERE key = %s"
            eventually("the first request to claim the key", lambda: shop.one(claimed, key))
            thread = threading.Thread(target=lambda: told.append(place_order(url, key, report, "/reports/")))
            thread.start()
            eventually("the client to ask the page", lambda: line.statuses[:2] == [202, 200])
            release()
            thread.join(DEADLINE)
            worker.join(DEADLINE)
        assert told == [{"status": "completed", "orders": 1}]
        assert line.methods.count("POST") == 2
        assert (first.statuses, set(line.statuses)) == ([202], {202, 200})
        assert shop.one("SELECT count(*) FROM shop_report WHERE key = %s", key) == 1
