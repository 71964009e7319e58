"""Keys that need attention, one of each kind: what `--serve` leaves for the admin and the commands."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

import httpx

from django_idempotency.maintenance import half_done, in_doubt, stuck
from django_idempotency.models import IdempotencyStep
from django_idempotency.testing import create_key
from shop.demo.payments import Scene
from shop.demo.stage import PAUSE, eventually, paused_in_the_middle
from shop.pause import HEADER

OLD_NAME = "POST old-payments/"
"""No route has it. The admin, the check W016 and `idempotency_endpoints --database default` say so."""


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
        Left(
            "two keys", "The answer was lost, and the client took a new key: two charges.", _two_keys(client, old_bank)
        ),
        Left("renamed", "Its route was renamed. A retry under the old name would find nothing.", _renamed()),
        Left("ran twice", "Its route was renamed, and the retry has run under the new name.", _ran_twice()),
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


def _two_keys(client: httpx.Client, old_bank: httpx.Client) -> int:
    scene = Scene(client, old_bank, "/careful-payments/")
    scene.send()
    first, scene.key = scene.key, str(uuid4())
    scene.send()
    return in_doubt().get(key=first).pk


def _renamed() -> int:
    return create_key(operation=OLD_NAME, in_doubt=["charge"], keyed=True).pk


def _ran_twice() -> int:
    """`recover_idempotency_keys` would leave it, too, because its caller has completed the same key."""
    completed = create_key(operation="pay")
    return create_key(completed.key, operation=OLD_NAME, in_doubt=["charge"], keyed=True).pk
