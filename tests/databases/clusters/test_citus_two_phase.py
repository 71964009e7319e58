"""Keys in a plain table on the coordinator of Citus, orders on the workers. A node is killed between two commits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connections

from django_idempotency import run_once
from django_idempotency.engine.stores import store_for
from tests.databases.clusters.aliases import alias
from tests.databases.clusters.citus import NODES, SETTINGS, Cluster, citus, missing
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order

TWO_PHASE = Path(__file__).parents[3] / "docs" / "citus_two_phase.sql"
PREPARED = "SELECT count(*) FROM pg_prepared_xacts"
pytestmark = pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: Citus needs {missing()}")


@pytest.fixture
def cluster(django_db_setup: None, django_db_blocker: Any) -> Iterator[Cluster]:
    with django_db_blocker.unblock(), citus() as running:
        running.coordinator.execute("ALTER DATABASE shop SET citus.enable_schema_based_sharding = off")
        with alias("plain", running.coordinator.settings()):
            call_command("migrate", database="plain", verbosity=0)
            running.coordinator.execute("DROP TABLE shopapp_line")  # it refers to the orders
            running.coordinator.execute("SELECT create_distributed_table('shopapp_order', 'id')")
            yield running


def order(key: str) -> bool:
    """Create an order; True: it is a replay."""

    def create() -> int:
        return Order.objects.using("plain").create(reference=key).pk

    return run_once(create, scope="ann", key=key, operation="order", using="plain").replayed


def retry(key: str) -> bool | None:
    """None: the server does not answer yet."""
    try:
        return order(key)
    except DatabaseError:
        connections["plain"].close()
        return None


def kill_the_coordinator_at_commit(cluster: Cluster, key: str, nodes: tuple[str, ...]) -> None:
    """These nodes do not confirm a commit, because they wait for a standby. Meanwhile the coordinator is killed."""

    def waits(name: str) -> bool:
        return bool(cluster.nodes[name].execute(WAITING))

    def first() -> None:
        try:
            with pytest.raises(DatabaseError):
                order(key)
        finally:
            connections["plain"].close()

    for name in nodes:
        wait_for_standby(cluster, name, "no_such_standby")
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(first)
        eventually("a commit to wait", lambda: request.done() or any(map(waits, nodes)))
        cluster.coordinator.kill()
        request.result(DEADLINE)
    connections["plain"].close()
    for name in set(nodes) - {"coordinator"}:
        wait_for_standby(cluster, name, "")
    cluster.coordinator.start(**SETTINGS, synchronous_standby_names="")


WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"


def wait_for_standby(cluster: Cluster, name: str, standby: str) -> None:
    cluster.nodes[name].execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
    cluster.nodes[name].execute("SELECT pg_reload_conf()")
    eventually("the setting", lambda: cluster.nodes[name].execute("SHOW synchronous_standby_names") == [(standby,)])


def recovered(cluster: Cluster) -> bool:
    cluster.coordinator.execute("SELECT recover_prepared_transactions()")
    return all(node.execute(PREPARED) == [(0,)] for node in cluster.nodes.values())


def test_without_the_trigger_one_key_has_two_orders(cluster: Cluster, key: str) -> None:
    """The worker has committed the order, and the key is lost with the coordinator. The check says so."""
    assert [message.id for message in store_for("plain").check()] == ["django_idempotency.E014"] * 2
    kill_the_coordinator_at_commit(cluster, key, NODES[1:])
    assert eventually("an answer", lambda: retry(key) is False)
    assert eventually("the orders", lambda: Order.objects.using("plain").filter(reference=key).count() == 2)


@pytest.mark.parametrize(
    ("nodes", "replayed"),
    [pytest.param(NODES[1:], False, id="while a worker prepares"), pytest.param(NODES[:1], True, id="after the key")],
)
def test_with_the_trigger_one_key_has_one_order(
    cluster: Cluster, key: str, nodes: tuple[str, ...], replayed: bool
) -> None:
    """Both commit or neither: Citus finishes what was prepared."""
    cluster.coordinator.execute(TWO_PHASE.read_text())
    assert not store_for("plain").check()
    kill_the_coordinator_at_commit(cluster, key, nodes)
    eventually("the recovery", lambda: recovered(cluster))
    told = eventually("an answer", lambda: [again] if (again := retry(key)) is not None else [])
    assert told == [replayed]
    assert Order.objects.using("plain").filter(reference=key).count() == 1
    assert order(key)
