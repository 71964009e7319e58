"""Keys that need attention, one of each kind: what `--serve` leaves for the admin and the commands."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from django_idempotency.maintenance import half_done, in_doubt, stuck
from django_idempotency.models import IdempotencyStep
from shop.demo.payments import Scene
from shop.demo.stage import PAUSE, eventually, paused_in_the_middle
from shop.pause import HEADER


@dataclass(frozen=True, slots=True)
class Left:
    """One key, and how it came about."""

    kind: str
    story: str
    pk: int


def leave(client: httpx.Client, bank: httpx.Client, old_bank: httpx.Client) -> list[Left]:
    return [
        Left("stuck", "The worker was killed before the charge, and no retry came.", _stuck(client, bank)),
        Left("in doubt", "The gateway charged, and its answer was lost.", _in_doubt(client, old_bank)),
        Left("half done", "The gateway charged, and the payment could not be written.", _half_done(client, bank)),
    ]


def _stuck(client: httpx.Client, bank: httpx.Client) -> int:
    scene = Scene(client, bank, "/payments/")
    with ThreadPoolExecutor(1) as pool, paused_in_the_middle() as worker:
        lost = pool.submit(scene.send, **{HEADER: str(PAUSE)})
        os.kill(worker(), signal.SIGKILL)
        lost.exception()
    mine = stuck().filter(key=scene.key)
    eventually("the lease to end", mine.exists)
    return mine.get().pk


def _in_doubt(client: httpx.Client, old_bank: httpx.Client) -> int:
    scene = Scene(client, old_bank, "/careful-payments/")
    scene.send()
    return in_doubt().get(key=scene.key).pk


def _half_done(client: httpx.Client, bank: httpx.Client) -> int:
    """The order is deleted while the gateway charges for it, so the payment's foreign key leads nowhere."""
    scene = Scene(client, bank, "/payments/", "hang")
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(scene.send)
        eventually("the call to start", IdempotencyStep.objects.filter(key__key=scene.key).exists)
        scene.order.delete()
        bank.post("/release", json={})
        sent.result()
    return half_done().get(key=scene.key).pk
