"""What a failover forgets: a primary and a streaming standby, and the primary is killed. See docs/databases.md."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection, connections

from django_idempotency import run_once
from django_idempotency.models import IdempotencyKey
from tests.clusters.aliases import alias, point
from tests.clusters.postgresql import Server, migrated_server
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order

pytestmark = pytest.mark.only_on("postgresql")
SYNCHRONOUS = {"synchronous_standby_names": "standby", "synchronous_commit": "on"}


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


def place_order_elsewhere(key: str) -> bool:
    """On a thread with its own connection."""
    try:
        return place_order(key)
    finally:
        connections.close_all()


def kept() -> list[list[str]]:
    """The orders and the keys of the server that is in charge."""
    orders, keys = Order.objects.using("cluster"), IdempotencyKey.objects.using("cluster")
    return [sorted(orders.values_list("reference", flat=True)), sorted(keys.values_list("key", flat=True))]


def test_without_its_answer_nothing_is_confirmed(started: Any) -> None:
    """The standby is away. COMMIT waits, the client hears of no success, and its retry orders on the new primary."""
    with started(**SYNCHRONOUS) as pair, ThreadPoolExecutor(1) as pool:
        place_order("before")
        pair.standby.stop()
        unheard = pool.submit(place_order_elsewhere, "unheard")
        found = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        eventually("a COMMIT to wait for the standby", lambda: pair.primary.execute(found))
        pair.fail_over()
        assert isinstance(unheard.exception(DEADLINE), OperationalError)
        assert kept() == [["before"], ["before"]]
        assert [place_order("before"), place_order("unheard")] == [True, False]
        assert kept() == [["before", "unheard"]] * 2


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
