"""A schema for each tenant on three nodes of Citus, each of which serves the project. See docs/databases.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Barrier, Event
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory

from django_idempotency import idempotent
from django_idempotency.engine.stores import store_for
from django_idempotency.engine.stores.postgresql import CitusStore
from tests.databases.clusters.aliases import alias
from tests.databases.clusters.citus import NODES, Cluster, citus, missing
from tests.servers import DEADLINE
from tests.shopapp.models import Order

TENANTS = ("acme", "globex")
KILLS, MOVES = 12, 4
pytestmark = pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: Citus needs {missing()}")


@pytest.fixture(scope="module")
def cluster(django_db_setup: None, django_db_blocker: Any) -> Iterator[Cluster]:
    with django_db_blocker.unblock(), citus() as running, ExitStack() as stack:
        for tenant in TENANTS:
            running.coordinator.execute(f"CREATE SCHEMA {tenant}")
            for node in NODES:
                stack.enter_context(alias(f"{tenant}-{node}", running.settings(node, tenant)))
            call_command("migrate", database=f"{tenant}-coordinator", verbosity=0)
        yield running


@pytest.fixture(autouse=True)
def _unblocked(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield
        connections.close_all()  # some lead to a node that was killed


def send(name: str, key: str, during: Callable[[], Any] = lambda: None, **options: Any) -> HttpResponse:
    """A request to the node and the tenant of this alias."""

    @idempotent(using=name, scope=lambda request: "ann", operation="order", **options)
    def create_order(request: HttpRequest) -> HttpResponse:
        order = Order.objects.using(name).create(reference=key)
        during()
        return JsonResponse({"id": order.pk}, status=201)

    return create_order(RequestFactory().post("/", headers={"Idempotency-Key": key}))


def told(answer: HttpResponse) -> tuple[int, str]:
    return answer.status_code, answer["Idempotency-Replayed"]


def test_the_store_knows_the_extension(cluster: Cluster) -> None:
    """No setting tells it."""
    for node in NODES:
        store = store_for(f"acme-{node}")
        assert type(store) is CitusStore
        assert not store.check()


@pytest.mark.parametrize("node", NODES)
def test_one_node_commits_in_one_phase(cluster: Cluster, key: str, node: str) -> None:
    """Key, order and response are on the node of the schema. The other nodes only pass statements on."""
    name = f"acme-{node}"
    store_for(name)
    messages: list[str] = []
    with connections[name].cursor() as cursor:
        cursor.execute("SET citus.log_remote_commands = on; SET client_min_messages = notice")
    raw: Any = connections[name].connection
    raw.add_notice_handler(lambda notice: messages.append(notice.message_primary))
    assert told(send(name, key)) == (201, "false")
    connections[name].close()
    commands = [message.removeprefix("issuing ") for message in messages if message.startswith("issuing ")]
    assert not [command for command in commands if command.startswith("PREPARE TRANSACTION")]
    assert commands.count("COMMIT") == (node != cluster.node_of("acme"))


def test_fifty_duplicates_over_three_nodes(cluster: Cluster, in_threads: Any) -> None:
    """They arrive at one moment, key after key, at all nodes."""
    start = Barrier(50)

    def duplicates(number: int) -> list[HttpResponse]:
        answers = []
        for key in range(5):
            start.wait(DEADLINE)
            answers.append(send(f"acme-{NODES[number % 3]}", f"fifty-{key}"))
        return answers

    for key, answers in enumerate(zip(*in_threads(50, duplicates), strict=True)):
        counted = Counter(map(told, answers))
        assert counted[201, "false"] == 1
        assert set(counted) <= {(201, "false"), (201, "true"), (409, "false")}
        assert cluster.orders()[f"fifty-{key}"] == 1
        assert [told(send(f"acme-{node}", f"fifty-{key}")) for node in NODES] == [(201, "true")] * 3


@pytest.mark.parametrize("node", NODES)
def test_a_duplicate_waits_on_the_node_of_the_schema(cluster: Cluster, key: str, in_threads: Any, node: str) -> None:
    """For at most `wait`. A duplicate that waits long enough gets the response."""
    running, ended = Event(), Event()

    def finish() -> None:
        running.set()
        assert ended.wait(DEADLINE), "the duplicate never got its answer"

    def request(number: int) -> HttpResponse:
        if number == 0:
            return send("acme-worker1", key, finish)
        assert running.wait(DEADLINE), "the first never began"
        if number == 1:
            try:
                return send(f"acme-{node}", key, wait=0.2)
            finally:
                ended.set()
        return send(f"acme-{node}", key, wait=DEADLINE)

    answers = in_threads(3, request)
    assert [told(answer) for answer in answers] == [(201, "false"), (409, "false"), (201, "true")]


CONTRACT = (
    *(f"tests/contracts/test_{name}.py" for name in ("attention", "late_claims", "leased", "races", "stores")),
    "tests/databases/stores/test_attention.py",
    "tests/steps/threads/test_leased.py",
    *("tests/steps/test_about.py", "tests/steps/test_operation.py"),
    *("tests/operators/test_erasure.py", "tests/operators/test_resolution.py"),
)
NOT_HERE = (
    "test_what_needs_attention_is_found_among",  # 100,000 deleted rows, which the plans of other tests would see
    "test_a_completion_changes_no_index",  # the statistics are those of the other nodes
    "test_under_repeatable_read_a_takeover_does_not_overlook_a_call",  # a node has no snapshot before it is asked
)


@pytest.mark.timeout(600)
def test_the_contract_of_a_store(cluster: Cluster) -> None:
    """Leased mode, takeovers, cleanup, lookups, erasure and decisions: the tests of every other store, on a schema."""
    for name in ("test_idempotency", "test_idempotency_other"):
        cluster.make_database(name)
        cluster.distribute_schemas(name)
        cluster.coordinator.execute("CREATE SCHEMA acme", name)
    wanted = " and ".join(f"not {name}" for name in NOT_HERE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *CONTRACT, "--reuse-db", "-q", "--no-cov", "-k", wanted],
        env={**os.environ, "DATABASE_URL": cluster.url("coordinator", "acme")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stdout[-3000:]
