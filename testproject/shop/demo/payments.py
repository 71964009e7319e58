"""Payments: a call to a gateway and a row of our own, in leased mode."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx

from django_idempotency.maintenance import record_outcome
from django_idempotency.models import IdempotencyKey
from shop.demo.stage import DEADLINE, Row, bytes_said, eventually, is_replay_of, tally, until_final
from shop.models import Order, Payment

TIMEOUT = 2
"""Seconds that the shop waits for the gateway."""
LEASE = 4
"""Seconds that a retry has to wait for after kill -9."""
ONCE = "1 charge, 1 payment"


def environment(bank: httpx.Client, old_bank: httpx.Client) -> dict[str, str]:
    """What the shop's processes have to know."""
    return {
        "GATEWAY_URL": str(bank.base_url).rstrip("/"),
        "OLD_GATEWAY_URL": str(old_bank.base_url).rstrip("/"),
        "GATEWAY_TIMEOUT": str(TIMEOUT),
        "PAYMENT_LEASE": str(LEASE),
    }


class Scene:
    """One order that is paid for at `path`, with a gateway that does not answer the first charge."""

    def __init__(self, client: httpx.Client, bank: httpx.Client, path: str) -> None:
        self.client, self.bank, self.path = client, bank, path
        self.order = Order.objects.create(item="a bicycle")
        self.reference = f"order {self.order.pk}"
        self.key = str(uuid4())
        bank.put("/behaviour", json={"reference": self.reference, "behaviour": "timeout-after"})

    def send(self) -> httpx.Response:
        data = {"order": self.order.pk, "amount": 49900}
        return self.client.post(self.path, json=data, headers={"Idempotency-Key": self.key})

    def charges(self) -> list[Any]:
        found: list[Any] = self.bank.get("/charges", params={"reference": self.reference}).json()["charges"]
        return found

    def kill_in_the_call(self) -> bool:
        """kill -9 of the worker, once the gateway has charged; has the client lost its connection?"""
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(self.send)
            charge = eventually("a charge in the gateway's books", self.charges)[0]
            os.kill(int(charge["caller"].removeprefix("shop-")), signal.SIGKILL)
            return isinstance(lost.exception(DEADLINE), httpx.TransportError)

    def row(self, what: str, answers: str, final: httpx.Response, *, as_told: bool) -> Row:
        again = self.send()
        same = is_replay_of(final, again)
        charges, payments = len(self.charges()), Payment.objects.filter(order=self.order).count()
        return Row(
            what,
            f"{answers}, {bytes_said(same)} again",
            f"{charges} charge{'s' * (charges != 1)}, {payments} payment{'s' * (payments != 1)}",
            ONCE,
            as_told and same and final.status_code == 201,
        )


def time_out(client: httpx.Client, bank: httpx.Client) -> Row:
    scene = Scene(client, bank, "/payments/")
    first = scene.send()
    retry = scene.send()
    return scene.row(
        "gateway times out after charging, retry",
        f"{tally([first])}; retry: {tally([retry])}",
        retry,
        as_told=first.status_code == 500,
    )


def kill(client: httpx.Client, bank: httpx.Client) -> Row:
    scene = Scene(client, bank, "/payments/")
    died = scene.kill_in_the_call()
    retry = until_final(scene.send)
    return scene.row(
        "kill -9 between charge and write, retry",
        f"{'connection lost' if died else 'answered'}; retry: {tally([retry])}",
        retry,
        as_told=died,
    )


def hold(client: httpx.Client, old_bank: httpx.Client) -> Row:
    """A gateway without keys: nobody calls it again until a person has looked into its books."""
    scene = Scene(client, old_bank, "/careful-payments/")
    died = scene.kill_in_the_call()
    refused = eventually("the lease to end", lambda: _unknown(scene.send()))
    key = IdempotencyKey.objects.get(key=scene.key)
    record_outcome(key.pk, "charge", {"id": scene.charges()[0]["id"]}, attempt=key.attempt)
    retry = scene.send()
    return scene.row(
        "the same, gateway without keys, held",
        f"{'connection lost' if died else 'answered'}; retry: {tally([refused])} in doubt; resolved: {tally([retry])}",
        retry,
        as_told=died,
    )


def _unknown(answer: httpx.Response) -> httpx.Response | None:
    return answer if answer.status_code == 409 and "unknown" in answer.json()["title"] else None
