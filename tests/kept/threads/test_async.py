"""Asynchronous views: one engine, one hop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction

from django_idempotency.engine.execution.claiming import LONGEST_PAUSE
from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import a_claim
from tests.servers import ANSWER, DEADLINE, eventually, sessions, uvicorn
from tests.shopapp.models import Ledger, Order


@pytest.fixture(scope="module")
def url(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The URL of a server that the tests of this module share."""
    with django_db_blocker.unblock(), uvicorn() as url:
        yield url


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
class TestServer:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("rest_framework")  # the test server's other views need it

    def test_a_client_that_disconnects_cancels_the_work(self, url: str, key: str) -> None:
        """Rolled back, the key is free, and no connection stays behind in a transaction."""
        headers = {"Idempotency-Key": key}
        with httpx.Client(base_url=url, timeout=DEADLINE) as client:
            with sent(url, "/async", {**headers, "X-Forever": "1"}):
                eventually("the view to have written", lambda: _in_a_transaction_after("shopapp_order"))
            eventually("the transaction to end", lambda: not _open_transactions())
            assert not Order.objects.exists()
            assert not IdempotencyKey.objects.exists()
            answer = client.post("/async", json={}, headers=headers)
        assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (201, "false")
        assert Order.objects.count() == 1

    @pytest.mark.parametrize("path", ["/async", "/async/leased"])
    def test_fifty_duplicates_make_one_order(self, url: str, key: str, path: str) -> None:
        """On uvicorn: one first-hand answer, replays and conflicts beside it, and one call where there is one."""

        async def storm() -> list[httpx.Response]:
            async with httpx.AsyncClient(timeout=DEADLINE) as client:
                send = [client.post(f"{url}{path}", json={}, headers={"Idempotency-Key": key}) for _ in range(50)]
                return await asyncio.gather(*send)

        answers = asyncio.run(storm())
        assert {a.status_code for a in answers} <= {201, 409}
        assert Counter(a.headers["Idempotency-Replayed"] for a in answers if a.status_code == 201)["false"] == 1
        assert Order.objects.count() == 1
        assert Ledger.objects.count() == (path == "/async/leased")

    @pytest.mark.parametrize("place", ["call", "write"])
    def test_a_client_that_disconnects_releases_a_leased_key(self, url: str, key: str, place: str) -> None:
        """Not after its hour: the call is finished first, the write is rolled back at once, the retry goes on."""
        headers = {"Idempotency-Key": key}
        with httpx.Client(base_url=url, timeout=DEADLINE) as client:
            with sent(url, "/async/leased", {**headers, "X-Hang": place}):
                # What a write has written is for nobody else to see yet, but its connection can be seen.
                in_a_call = Ledger.objects.filter(entry__startswith="call").exists
                arrived = in_a_call if place == "call" else lambda: _in_a_transaction_after("shopapp_ledger")
                eventually(f"the view to be in its {place}", arrived)
            for _ in range(5):  # the server's event loop has seen the hang-up by then
                assert client.get("/async/ping").text == "pong"
            if place == "call":
                assert IdempotencyKey.objects.get().status == "in_progress"
                Ledger.objects.create(entry=ANSWER)
            row = eventually("the key to be released", lambda: IdempotencyKey.objects.filter(status="failed").first())
            assert row.locked_until is None
            assert str(row.last_error).startswith("asyncio.exceptions.CancelledError")
            assert not row.steps.filter(finished_at=None).exists()
            eventually("the transaction to end", lambda: not _open_transactions())
            assert not Order.objects.exists()
            answer = client.post("/async/leased", json={}, headers=headers)
        assert (answer.status_code, answer.json()["attempt"]) == (201, 2)
        assert Order.objects.count() == 1
        calls = Ledger.objects.filter(entry__startswith="charge")
        assert calls.count() == 1

    def test_a_client_that_disconnects_before_the_view_runs(self, key: str) -> None:
        """If it does so while its request waits for the claim, the view never starts, and the key stays free.

        The server is new, so a worker's first connection shows that the request has asked for its key.
        """
        mine = a_claim(scope="anonymous", operation="POST async/wait", key=key)
        with uvicorn() as url, httpx.Client(base_url=url, timeout=DEADLINE) as client:
            with transaction.atomic():
                assert isinstance(store_for("default").claim(mine), Claimed)
                with sent(url, "/async/wait", {"Idempotency-Key": key}):
                    eventually("the request to ask", _asks)
                for _ in range(5):  # the server's event loop has seen the hang-up by then
                    assert client.get("/async/ping").text == "pong"
                transaction.set_rollback(True)
            time.sleep(2 * LONGEST_PAUSE)  # its thread has asked again by now, and could have run the view
            assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
            assert client.post("/async/wait", json={}, headers={"Idempotency-Key": key}).status_code == 201

    def test_the_event_loop_goes_on(self, url: str, key: str) -> None:
        """While twenty requests hang in their work, others of the same process are answered."""

        async def crowd() -> bool:
            async with httpx.AsyncClient(timeout=DEADLINE) as client:
                hanging = [
                    asyncio.create_task(
                        client.post(
                            f"{url}/async/leased",
                            json={},
                            headers={"Idempotency-Key": f"{key}-{number}", "X-Hang": "call"},
                        )
                    )
                    for number in range(20)
                ]
                hung = sync_to_async(Ledger.objects.filter(entry__startswith="call").count)
                async with asyncio.timeout(DEADLINE):
                    while await hung() < len(hanging):
                        assert (await client.get(f"{url}/async/ping")).text == "pong"
                    assert (await client.get(f"{url}/async/ping")).text == "pong"
                still = not any(task.done() for task in hanging)
                await Ledger.objects.acreate(entry=ANSWER)
                await asyncio.gather(*hanging)
                return still

        assert async_to_sync(crowd)()
        assert IdempotencyKey.objects.filter(status="completed").count() == 20
        assert not _open_transactions()


@contextmanager
def sent(url: str, path: str, headers: dict[str, str]) -> Iterator[None]:
    """A request whose client hangs up at the end of the block."""
    target = httpx.URL(url)
    lines = ["Host: test", "Content-Type: application/json", "Content-Length: 2"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((target.host, target.port or 80), timeout=DEADLINE) as line:
        line.sendall("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", "{}"]).encode())
        yield


def _asks() -> bool:
    """Does a worker have a session on the database?"""
    with connection.cursor() as cursor:  # pg_stat_activity stays as it was first seen in a transaction
        cursor.execute("SELECT pg_stat_clear_snapshot()")
    return bool(sessions("application_name LIKE 'worker-%%'"))


def _in_a_transaction_after(table: str) -> bool:
    """Has a worker inserted into this table and not committed yet?"""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s AND state = %s AND query LIKE %s",
            ["worker-%", "idle in transaction", f'INSERT INTO "{table}"%'],
        )
        return bool(cursor.fetchone()[0])


def _open_transactions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s AND state LIKE %s",
            ["worker-%", "idle in transaction%"],
        )
        return int(cursor.fetchone()[0])
