"""Duplicates on three nodes of a Galera cluster at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from threading import Barrier, Event
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory

from django_idempotency import OperationInProgress, idempotent, run_once
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.maintenance.resolution import close_with
from django_idempotency.models import IdempotencyKey
from tests import mariadb_server
from tests.databases.clusters.aliases import alias
from tests.databases.clusters.galera import NODES, galera, missing
from tests.servers import DEADLINE
from tests.shopapp.models import Order
from tests.step_rows import miscounted

ROUNDS, BULK = 40, 100_000
pytestmark = pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: Galera needs {missing()}")


@pytest.fixture(scope="module", autouse=True)
def _cluster(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), galera() as nodes, ExitStack() as stack:
        for node in nodes:
            stack.enter_context(alias(node.name, mariadb_server.settings(node.socket)))
        call_command("migrate", database=NODES[0], verbosity=0)
        synchronize()
        yield


@pytest.fixture(autouse=True)
def _unblocked(django_db_blocker: Any) -> Iterator[None]:
    """And on each node, the rows say what their steps come to."""
    with django_db_blocker.unblock():
        yield
        synchronize()
        assert [miscounted(node) for node in NODES] == [{}] * len(NODES)


def send(node: str, key: str, meeting: Barrier | None = None) -> HttpResponse:
    """A view on this node. It meets its duplicates on the other nodes, if there are any, after its write."""

    @idempotent(using=node, scope=lambda request: "galera", operation="order")
    def create_order(request: HttpRequest) -> HttpResponse:
        order = Order.objects.using(node).create(reference=key)
        if meeting is not None:
            meeting.wait(DEADLINE)
        return JsonResponse({"id": order.pk}, status=201)

    return create_order(RequestFactory().post("/", headers={"Idempotency-Key": key}))


def test_storm(in_threads: Any) -> None:
    """Without a meeting, each statement of the loser may be the one that fails."""
    start = Barrier(len(NODES))

    def rounds(node: int) -> list[HttpResponse]:
        answers = []
        for number in range(ROUNDS):
            start.wait(DEADLINE)
            answers.append(send(NODES[node], f"storm-{number}"))
        return answers

    for number, answers in enumerate(zip(*in_threads(len(NODES), rounds), strict=True)):
        check(f"storm-{number}", answers)


def test_in_leased_mode_one_node_makes_the_call(in_threads: Any) -> None:
    """The claim commits before the call. Where another node was faster, that COMMIT fails."""
    start, calls = Barrier(len(NODES)), Counter[str]()

    def rounds(node: int) -> None:
        for number in range(ROUNDS):
            key = f"leased-{number}"
            start.wait(DEADLINE)
            with suppress(OperationInProgress):
                run_once(
                    lambda operation, key=key: operation.call("charge", calls.update, [key]),
                    scope="galera",
                    key=key,
                    operation="pay",
                    lease=60,
                    using=NODES[node],
                )

    in_threads(len(NODES), rounds)
    assert calls == {f"leased-{number}": 1 for number in range(ROUNDS)}


@pytest.mark.parametrize("step", ["write", "call"])
def test_a_late_worker_writes_nothing_beside_a_decision_on_another_node(in_threads: Any, step: str) -> None:
    """An operator closes the key on one node. The worker's node is busy, and does not know of it when it commits."""
    in_step, closed, name = Event(), Event(), f"late-{step}"
    options: dict[str, Any] = {"scope": "galera", "key": name, "operation": "pay", "lease": 0.1, "using": "node1"}

    def late() -> int:
        if step == "write":
            Order.objects.using("node1").create(reference="late")
        in_step.set()
        assert closed.wait(DEADLINE), "the key was never closed"
        return 1

    def work(number: int) -> Any:
        if number == 0:
            return run_once(lambda operation: getattr(operation, step)("late", late), **options)
        assert in_step.wait(DEADLINE), "the step never began"
        key = IdempotencyKey.objects.using("node2").get(key=name)
        Order.objects.using("node2").bulk_create([Order(reference="bulk") for _ in range(BULK)])
        snapshot = Snapshot(status_code=200, headers=(), body=b"refunded")
        close_with(key, snapshot)
        closed.set()
        return None

    told, _ = in_threads(2, work)
    assert (told.value, told.replayed) == ("refunded", True)
    synchronize()
    assert not Order.objects.using("node1").filter(reference="late").exists()
    row = IdempotencyKey.objects.using("node1").get(key=name)
    assert row.status_code == 200
    assert not row.steps.using("node1").exclude(finished_at=None).exists()


def check(key: str, answers: Any) -> None:
    """One order and one first answer. The others are replays or conflicts, until all nodes know of the winner."""
    told = Counter((answer.status_code, answer["Idempotency-Replayed"]) for answer in answers)
    assert told[201, "false"] == 1
    assert set(told) <= {(201, "false"), (201, "true"), (409, "false")}
    synchronize()  # a node that still applies the winner's transaction says 409
    replays = [send(node, key) for node in NODES]
    assert {(answer.status_code, answer["Idempotency-Replayed"]) for answer in replays} == {(201, "true")}
    assert len({answer.content for answer in (*replays, *(a for a in answers if a.status_code == 201))}) == 1
    for node in NODES:
        assert Order.objects.using(node).filter(reference=key).count() == 1
        assert IdempotencyKey.objects.using(node).filter(key=key).count() == 1


def synchronize() -> None:
    """Wait until each node knows all that was committed before."""
    for node in NODES:
        with connections[node].cursor() as cursor:
            cursor.execute("SET SESSION wsrep_sync_wait = 1")
            cursor.execute("SELECT count(*) FROM django_migrations")
            cursor.execute("SET SESSION wsrep_sync_wait = 0")
