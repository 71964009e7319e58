"""Payments in leased mode: a call to the gateway and a row in the shop's database."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx

from django_idempotency.maintenance import record_outcome
from django_idempotency.models import IdempotencyKey
from shop.demo.stage import DEADLINE, Row, compared, eventually, is_replay_of, statuses, until_final
from shop.models import Order, Payment

TIMEOUT = 2
"""Seconds that the shop waits for the gateway."""
LEASE = 4
"""Seconds for which a retry gets a conflict after kill -9."""
ONCE = "1 charge, 1 payment"


def environment(bank: httpx.Client, old_bank: httpx.Client) -> dict[str, str]:
    """Return the environment variables of the shop's processes."""
    return {
        "GATEWAY_URL": str(bank.base_url).rstrip("/"),
        "OLD_GATEWAY_URL": str(old_bank.base_url).rstrip("/"),
        "GATEWAY_TIMEOUT": str(TIMEOUT),
        "PAYMENT_LEASE": str(LEASE),
    }


class Scene:
    """One order that is paid for at `path`. `behaviour` is what the gateway does with the first charge.

    By default the gateway charges, but does not respond.
    """

    def __init__(self, client: httpx.Client, bank: httpx.Client, path: str, behaviour: str = "timeout-after") -> None:
        self.client, self.bank, self.path = client, bank, path
        self.order = Order.objects.create(item="a bicycle")
        self.reference = f"order {self.order.pk}"
        self.key = str(uuid4())
        bank.put("/behaviour", json={"reference": self.reference, "behaviour": behaviour})

    def send(self, **headers: str) -> httpx.Response:
        data = {"order": self.order.pk, "amount": 49900}
        return self.client.post(self.path, json=data, headers={"Idempotency-Key": self.key, **headers})

    def charges(self) -> list[Any]:
        found: list[Any] = self.bank.get("/charges", params={"reference": self.reference}).json()["charges"]
        return found

    def kill_in_the_call(self) -> bool:
        """Kill the worker once the gateway has charged. Returns whether the client lost its connection."""
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(self.send)
            charge = eventually("a charge in the gateway's ledger", self.charges)[0]
            os.kill(int(charge["caller"].removeprefix("shop-")), signal.SIGKILL)
            return isinstance(lost.exception(DEADLINE), httpx.TransportError)

    def row(self, what: str, responses: str, final: httpx.Response, *, responses_ok: bool) -> Row:
        again = self.send()
        same = is_replay_of(final, again)
        charges, payments = len(self.charges()), Payment.objects.filter(order=self.order).count()
        return Row(
            what,
            f"{responses}, {compared(same)}",
            f"{charges} charge{'s' * (charges != 1)}, {payments} payment{'s' * (payments != 1)}",
            ONCE,
            responses_ok and same and final.status_code == 201,
        )


def time_out(client: httpx.Client, bank: httpx.Client) -> Row:
    scene = Scene(client, bank, "/payments/")
    first = scene.send()
    retry = scene.send()
    return scene.row(
        "gateway times out, retry",
        f"{statuses([first])}; retries: {statuses([retry])}",
        retry,
        responses_ok=first.status_code == 500,
    )


def kill(client: httpx.Client, bank: httpx.Client) -> Row:
    scene = Scene(client, bank, "/payments/")
    died = scene.kill_in_the_call()
    retry = until_final(scene.send)
    return scene.row(
        "kill -9 after the charge, retry",
        f"{'lost' if died else 'NOT LOST'}; retries: {statuses([retry])}",
        retry,
        responses_ok=died,
    )


def hold(client: httpx.Client, old_bank: httpx.Client) -> Row:
    """A gateway that ignores keys: the shop does not call it again until an operator records the outcome."""
    scene = Scene(client, old_bank, "/careful-payments/")
    died = scene.kill_in_the_call()
    refused = eventually("the lease to end", lambda: _unknown(scene.send()))
    key = IdempotencyKey.objects.get(key=scene.key)
    record_outcome(key, "charge", {"id": scene.charges()[0]["id"]})
    retry = scene.send()
    return scene.row(
        "the same, gateway without keys",
        f"{'lost' if died else 'NOT LOST'}, {statuses([refused])}; resolved: {statuses([retry])}",
        retry,
        responses_ok=died,
    )


def _unknown(response: httpx.Response) -> httpx.Response | None:
    return response if response.status_code == 409 and "unknown" in response.json()["title"] else None
