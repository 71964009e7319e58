"""What a failover forgets: a primary and a streaming standby, and the primary is killed. See docs/databases.md.

`-s` shows how many keys and orders were confirmed, lost and made again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from django.db import Error, OperationalError, connection, connections
from django.db.models import F

from django_idempotency import Operation, OperationInProgress, StoreBusy, run_once
from django_idempotency.models import IdempotencyKey
from tests.databases.clusters.aliases import alias, point
from tests.databases.clusters.postgresql import Server, migrated_server
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order
from tests.sql import isolated

pytestmark = pytest.mark.only_on("postgresql")
SYNCHRONOUS = {"synchronous_standby_names": "standby", "synchronous_commit": "on"}
CLIENTS = 4
REQUESTS = 30
"""Requests that are confirmed, at least, before each thing that happens to the servers."""


@pytest.fixture(scope="module")
def original(django_db_setup: None, django_db_blocker: Any) -> Iterator[Server | None]:
    if connection.vendor != "postgresql":
        yield None  # every test here is skipped
        return
    with django_db_blocker.unblock(), migrated_server() as server:
        yield server


class Pair:
    """A primary, its standby, and the alias `cluster` of the one that is in charge."""

    def __init__(self, original: Server, folder: str, settings: dict[str, str]) -> None:
        parent = original.folder.parent
        self.primary = original.copy_to(parent / f"{folder}-primary")
        self.standby = original.copy_to(parent / f"{folder}-standby")
        self.standby.follow(self.primary)
        self._settings = settings

    def start(self) -> None:
        self.primary.start(**self._settings)
        self.standby.start()
        eventually("the standby to stream", self._is_streaming)

    def _is_streaming(self) -> bool:
        wanted = "sync" if "synchronous_standby_names" in self._settings else "async"
        return self.primary.execute("SELECT sync_state FROM pg_stat_replication") == [(wanted,)]

    def await_waiting_commit(self) -> None:
        found = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        eventually("a COMMIT to wait for the standby", lambda: self.primary.execute(found))

    def fail_over(self) -> None:
        """Kill the primary, and put the standby in charge."""
        self.primary.kill()
        if self.standby.process is None:
            self.standby.start()
        self.standby.execute("SELECT pg_promote()")
        point("cluster", self.standby.settings())


@pytest.fixture
def started(original: Server, django_db_blocker: Any) -> Iterator[Any]:
    @contextmanager
    def pair(**settings: str) -> Iterator[Pair]:
        pair = Pair(original, uuid4().hex[:8], settings)  # short: a path of a socket has at most 107 characters
        try:
            pair.start()
            with alias("cluster", pair.primary.settings()):
                yield pair
        finally:
            for server in (pair.primary, pair.standby):
                if server.process is not None:
                    server.kill()

    with django_db_blocker.unblock():
        yield pair


def place_order(key: str) -> bool:
    """Whether the answer was a replay."""

    def order() -> int:
        return Order.objects.using("cluster").create(reference=key).pk

    return run_once(order, scope="failover", key=key, operation="order", using="cluster").replayed


def kept() -> list[list[str]]:
    """The orders and the keys of the server that is in charge."""
    orders, keys = Order.objects.using("cluster"), IdempotencyKey.objects.using("cluster")
    return [sorted(orders.values_list("reference", flat=True)), sorted(keys.values_list("key", flat=True))]


def test_without_its_answer_nothing_is_confirmed(started: Any) -> None:
    """The standby is away. COMMIT waits, the client hears of no success, and its retry orders on the new primary."""
    with started(**SYNCHRONOUS) as pair, ThreadPoolExecutor(1) as pool:
        place_order("before")
        pair.standby.stop()
        unheard = pool.submit(isolated(place_order), "unheard")
        pair.await_waiting_commit()
        pair.fail_over()
        assert isinstance(unheard.exception(DEADLINE), OperationalError)
        assert kept() == [["before"], ["before"]]
        assert [place_order("before"), place_order("unheard")] == [True, False]
        assert kept() == [["before", "unheard"]] * 2


def test_a_restarted_primary_confirms_what_waited(started: Any) -> None:
    """A limit: a retry is then answered with a replay, and a failover would lose that order."""
    with started(**SYNCHRONOUS) as pair, ThreadPoolExecutor(1) as pool:
        pair.standby.stop()
        unheard = pool.submit(isolated(place_order), "unheard")
        pair.await_waiting_commit()
        pair.primary.kill()
        assert isinstance(unheard.exception(DEADLINE), OperationalError)
        pair.primary.start(**SYNCHRONOUS)
        assert place_order("unheard") is True
        pair.fail_over()
        assert kept() == [[], []]


@pytest.mark.skipif(
    connection.Database.__name__ == "psycopg2", reason="a COMMIT of psycopg2 runs in C, which no signal interrupts"
)
@pytest.mark.parametrize("lease", [None, 600], ids=["atomic", "leased"])
@pytest.mark.parametrize("django_sends", [False, True], ids=["message", "cursor"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_an_exception_during_the_wait_confirms_nothing(
    started: Any, kind: type[BaseException], django_sends: bool, lease: int | None
) -> None:
    """Otherwise, a retry would be answered with a replay, while only the old primary has the order.

    gunicorn ends a worker with SystemExit if a request takes too long, as every COMMIT does without the standby.
    """

    def order(*operation: Operation) -> str:
        Order.objects.using("cluster").create(reference="unheard")
        pair.standby.stop()
        striking.append(pool.submit(strike))
        return "ordered"

    def place() -> Any:
        return run_once(order, scope="s", key="unheard", operation="o", using="cluster", lease=lease)

    def interrupt(number: int, frame: Any) -> None:
        raise kind

    def strike() -> None:
        pair.await_waiting_commit()
        os.kill(os.getpid(), signal.SIGUSR1)
        if lease is not None:
            releasing = "SELECT pid FROM pg_locks WHERE NOT granted"
            eventually("the release of the key to wait for that COMMIT", lambda: pair.primary.execute(releasing))
            os.kill(os.getpid(), signal.SIGUSR1)

    striking: list[Future[None]] = []
    usual = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with started(**SYNCHRONOUS) as pair, ThreadPoolExecutor(1) as pool:
            connections["cluster"].force_debug_cursor = django_sends
            place_order("warms-up")
            assert "wait" not in vars(connections["cluster"].connection)  # Django's own statements are cancelled
            with pytest.raises(kind):
                place()
            striking.pop().result(DEADLINE)
            connections["cluster"].force_debug_cursor = False
            with pytest.raises((StoreBusy, OperationInProgress)):
                place()
    finally:
        signal.signal(signal.SIGUSR1, usual)


@pytest.mark.parametrize(
    "settings",
    [
        {"synchronous_standby_names": "standby", "synchronous_commit": "local"},
        {"synchronous_standby_names": "standby", "synchronous_commit": "off"},
        {"synchronous_commit": "on"},
    ],
    ids=["local", "off", "on-without-a-synchronous-standby"],
)
def test_otherwise_a_confirmed_order_may_be_lost(started: Any, settings: dict[str, str]) -> None:
    """It is lost with its key. So the retry orders again, and the new primary has one order."""
    with started(**settings) as pair:
        pair.standby.stop()
        place_order("confirmed")
        pair.fail_over()
        assert kept() == [[], []]
        assert place_order("confirmed") is False
        assert kept() == [["confirmed"], ["confirmed"]]


class Clients:
    """Each sends requests under new keys until one gets no answer, in atomic and in leased mode by turns.

    The gateway of the leased ones honours keys. `charges` are its books.
    """

    def __init__(self) -> None:
        self.confirmed: list[str] = []
        self.unheard: list[str] = []
        self.charges: set[str] = set()

    def send(self, client: int) -> None:
        for number in count():
            key = f"{('atomic', 'leased')[number % 2]}-{client}-{number}"
            try:
                self.place(key)
            except (StoreBusy, Error):
                self.unheard.append(key)
                return
            self.confirmed.append(key)

    def place(self, key: str) -> bool:
        """Whether the answer was a replay."""
        if key.startswith("atomic"):
            return place_order(key)

        def pay(operation: Operation) -> int:
            operation.call("charge", self.charges.add, operation.derive_key("charge"))
            return int(operation.write("order", Order.objects.using("cluster").create, reference=key).pk)

        return run_once(pay, scope="failover", key=key, operation="pay", using="cluster", lease=600).replayed

    def go_on(self, sending: list[Future[None]]) -> None:
        wanted = len(self.confirmed) + REQUESTS
        eventually("more requests", lambda: len(self.confirmed) >= wanted or any(client.done() for client in sending))
        assert not [client.result() for client in sending if client.done()]


def stored(beginning: str) -> tuple[list[str], dict[str, str]]:
    """The orders, and the status of each key, of the server that is in charge."""
    orders, keys = (model.objects.using("cluster") for model in (Order, IdempotencyKey))
    return (
        sorted(orders.filter(reference__startswith=beginning).values_list("reference", flat=True)),
        dict(keys.filter(key__startswith=beginning).values_list("key", "status")),
    )


@pytest.mark.parametrize(
    ("settings", "lags"),
    [(SYNCHRONOUS, False), ({"synchronous_commit": "on"}, True)],
    ids=["synchronous", "asynchronous"],
)
def test_while_requests_run_a_key_and_its_order_are_lost_together(
    started: Callable[..., Any], settings: dict[str, str], lags: bool
) -> None:
    """Each is there with the other or missing with it. After all keys were retried, each has one order.

    With a synchronous standby, no confirmed order is missing. An asynchronous one that lags has not received the last.
    """
    clients = Clients()
    with ThreadPoolExecutor(CLIENTS) as pool, started(**settings) as pair:  # the servers end first, and so the clients
        sending = [pool.submit(isolated(clients.send), client) for client in range(CLIENTS)]
        clients.go_on(sending)
        if lags:
            pair.primary.stop_streaming()
            clients.go_on(sending)
        pair.fail_over()
        for client in sending:
            client.result(DEADLINE)

        orders, keys = stored("atomic")
        assert orders == sorted(keys)
        paid, leased = stored("leased")
        completed = {key for key, status in leased.items() if status == "completed"}
        assert completed <= set(paid) <= set(leased)
        lost = [key for key in clients.confirmed if key not in {*orders, *completed}]
        assert (len(lost) >= REQUESTS) if lags else (lost == [])

        # The old primary's workers are gone, so their leases end here instead of in ten minutes.
        IdempotencyKey.objects.using("cluster").exclude(locked_until=None).update(locked_until=F("created_at"))
        sent = [*clients.confirmed, *clients.unheard]
        with ThreadPoolExecutor(CLIENTS) as others:  # those of `pool` have aliases that lead to the old primary
            replayed = list(others.map(isolated(clients.place), sent))
        assert [key for key, was_replayed in zip(sent, replayed, strict=True) if was_replayed] == [
            key for key in sent if key in {*orders, *completed}
        ]
        assert kept() == [sorted(sent)] * 2
        assert len(clients.charges) == sum(key.startswith("leased") for key in sent)
    print(
        f"{len(clients.confirmed)} orders confirmed and {len(clients.unheard)} unheard; on the new primary "
        f"{len(keys)} atomic keys with {len(orders)} orders and {len(leased)} leased keys with {len(paid)}; "
        f"{len(lost)} confirmed responses lost; {replayed.count(True)} retries replayed, {replayed.count(False)} run; "
        f"{len(sent)} orders in the end"
    )
