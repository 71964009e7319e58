"""Many duplicates at once on several server processes, directly and through pgbouncer; then the books.

Short here. A thousand operations, by a seed that makes the plan again: `BURSTS=125 BURSTS_SEED=7 tox run -e bursts`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import UUID

import httpx
import pytest

pytest.importorskip("rest_framework")


from django.db import connection, transaction

from django_idempotency.models import IdempotencyKey
from tests.interrupts.retrying import Retrying
from tests.pooler import PGBOUNCER, pgbouncer
from tests.servers import DEADLINE, eventually, gunicorn
from tests.shopapp.models import Ledger, Order

LONGER = int(os.environ.get("BURSTS", "1"))
SEED = int(os.environ.get("BURSTS_SEED", "1"))
OPERATIONS = 2 * LONGER
"""For each size and each way to the database."""
PATHS = ("/plain", "/rest")
WORKERS, THREADS = 3, 24
POOL = 12
"""Connections for 72 threads: under transaction pooling each transaction may be on another one."""
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(120 + 30 * LONGER),
]
WAYS = [
    "directly",
    pytest.param("pgbouncer", marks=pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")),
]


@pytest.fixture
def plan() -> random.Random:
    print(f"BURSTS={LONGER} BURSTS_SEED={SEED}")  # shown if the test fails
    return random.Random(SEED)


@contextmanager
def serving(way: str) -> Iterator[str]:
    through: Any = pgbouncer(POOL) if way == "pgbouncer" else nullcontext({})
    processes = ("--workers", str(WORKERS), "--threads", str(THREADS))
    with through as environment, gunicorn(*processes, **environment) as url:
        yield url


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [50, 200])
def test_each_burst_makes_one_order(plan: random.Random, size: int, way: str, record_property: Any) -> None:
    """One runs; each other gets its answer or is told to come back; nothing is stuck."""

    async def burst(client: httpx.AsyncClient) -> None:
        path, key = plan.choice(PATHS), str(UUID(int=plan.getrandbits(128)))

        async def send() -> httpx.Response:
            return await client.post(path, json={"a": 1}, headers={"Idempotency-Key": key})

        answers = await asyncio.gather(*(send() for _ in range(size)))
        assert Counter(a.headers["Idempotency-Replayed"] for a in answers if a.status_code == 201)["false"] == 1
        assert {a.status_code for a in answers} <= {201, 409}
        replay = await send()
        assert replay.headers["Idempotency-Replayed"] == "true"
        assert {a.content for a in answers if a.status_code == 201} == {replay.content}

    async def bursts(url: str) -> None:
        # Each request on a connection of its own: the server ends idle ones at its leisure.
        limits = httpx.Limits(max_connections=size, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE, limits=limits) as client:
            for _ in range(OPERATIONS):
                await burst(client)

    with serving(way) as url:
        asyncio.run(bursts(url))
    assert Order.objects.count() == OPERATIONS
    assert Counter(IdempotencyKey.objects.values_list("status", flat=True)) == {"completed": OPERATIONS}
    record_property("counted", {"requests": OPERATIONS, "attempts": OPERATIONS * size})


@pytest.fixture
def _deadlocks_found_soon() -> Iterator[None]:
    """In 20 ms instead of a second."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} SET deadlock_timeout = '20ms'")
        yield
        cursor.execute(f"ALTER DATABASE {name} RESET deadlock_timeout")


class Transfer(Retrying):
    """A client that moves 1 from the first account to the second one."""

    def __init__(self, client: httpx.Client, pair: list[int]) -> None:
        super().__init__(client, "/transfer")
        self.pair = pair

    def send(self, **headers: str) -> httpx.Response:
        return self.client.post(self.path, json=self.pair, headers={"Idempotency-Key": self.key, **headers})


def certain_deadlock(pool: ThreadPoolExecutor, there: Transfer, back: Transfer) -> None:
    """Let both views lock their first account before one of them gets its second account."""

    def waits(number: int) -> bool:
        with connection.cursor() as cursor:
            # Of views only: a table may also be wanted by autovacuum.
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype IN ('transactionid', 'tuple') AND NOT granted")
            return bool(cursor.fetchone()[0] == number)

    with transaction.atomic():
        # Both want this row: the first one as its first account, and the other one, which has its first, as its second.
        Order.objects.select_for_update().get(pk=there.pair[0])
        answers = [pool.submit(there.send)]
        eventually("the first view to wait", lambda: waits(1))
        answers.append(pool.submit(back.send))
        eventually("the other view to wait", lambda: waits(2))
    assert sorted(answer.result().status_code for answer in answers) == [201, 500]


@pytest.mark.usefixtures("_deadlocks_found_soon")
@pytest.mark.parametrize("way", WAYS)
def test_views_that_deadlock_run_once_in_the_end(plan: random.Random, way: str) -> None:
    """The database picks a victim, whose client gets a 500 and retries: no transfer is lost, none is made twice."""
    accounts = [Order.objects.create(amount=0).pk for _ in range(2)]
    pairs = [accounts, accounts[::-1], *(plan.sample(accounts, 2) for _ in range(40 * LONGER))]

    def settle(transfer: Transfer) -> str:
        assert transfer.until_final().status_code == 201
        assert transfer.until_final().headers["Idempotency-Replayed"] == "true"
        return transfer.key

    with (
        serving(way) as url,
        httpx.Client(base_url=url, timeout=DEADLINE) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        transfers = [Transfer(client, pair) for pair in pairs]
        certain_deadlock(pool, *transfers[:2])
        keys = list(pool.map(settle, transfers))
    moved = sum(1 if pair[0] == accounts[0] else -1 for pair in pairs)
    assert dict(Order.objects.values_list("pk", "amount")) == {accounts[0]: -moved, accounts[1]: moved}
    assert sorted(Ledger.objects.values_list("entry", flat=True)) == sorted(keys)
    assert not IdempotencyKey.objects.exclude(status="completed").exists()
