"""The figures of docs/where.md: `python -m tests.extra.benchmarks.keys_in_redis`; two minutes. --quick: fewer.

It needs `redis-server` (Debian's package), and starts servers of its own on loopback.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any
from uuid import uuid4

from tests.extra.benchmarks import stage

stage.build()

from django.db import connections, transaction

from django_idempotency import OperationInProgress, run_once
from tests.extra.benchmarks.conditions import begun
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.redis_server import AS_DEBIAN, DURABLE, Line, Server, running
from tests.extra.benchmarks.redis_store import Busy, NotStored, RedisStore
from tests.servers import eventually
from tests.shopapp.models import Order

Way = Callable[[Callable[[], Any], str], Any]
"""Runs the work under the key."""
CASES = ("first", "replay", "in flight")
AWAY = 0.001
"""Seconds from the primary to its replica."""


def order(reference: str) -> int:
    return int(Order.objects.create(reference=reference, amount=3).pk)


def in_the_table(work: Callable[[], Any], key: str) -> Any:
    return run_once(work, scope="bench", operation="order", key=key).value


def in_redis(server: Server, **options: Any) -> Way:
    store = RedisStore(server.client(), **options)
    return lambda work, key: store.run_once(work, key=key)


def costs(rounds: int, each: int) -> str:
    """Each way in turn in each round, so that a busy moment of the machine meets all."""
    with ExitStack() as stack:
        ways: dict[str, Way] = {"this table": in_the_table}
        for name, options in {"Redis, Debian's settings": AS_DEBIAN, "Redis, appendfsync always": DURABLE}.items():
            ways[name] = in_redis(stack.enter_context(running(*options)))
        found: dict[tuple[str, str], list[float]] = {(name, case): [] for name in ways for case in CASES}
        for _ in range(rounds):
            bare = timed(lambda: transaction.atomic(order)("bare"), each)
            for name, way in ways.items():
                for case, seconds in one_round(way, each).items():
                    found[name, case].append(seconds / bare)
    rows = [[name, *(f"×{statistics.median(found[name, case]):.2f}" for case in CASES)] for name in ways]
    return table(["the same order, × without a key", *CASES], rows)


def one_round(way: Way, each: int) -> dict[str, float]:
    done, busy = str(uuid4()), str(uuid4())
    way(lambda: order(done), done)

    def first() -> None:
        key = str(uuid4())
        way(lambda: order(key), key)

    def refused() -> None:
        with suppress(Busy, OperationInProgress):
            way(lambda: order("never"), busy)
            raise AssertionError("a duplicate has run")

    seconds = {"first": timed(first, each), "replay": timed(lambda: way(lambda: order("never"), done), each)}
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        def work() -> int:
            entered.set()
            leave.wait()
            return 0

        way(work, busy)
        connections.close_all()

    thread = threading.Thread(target=hang)
    thread.start()
    entered.wait()
    seconds["in flight"] = timed(refused, each)
    leave.set()
    thread.join()
    return seconds


def timed(call: Callable[[], Any], each: int) -> float:
    started = time.perf_counter()
    for _ in range(each):
        call()
    return time.perf_counter() - started


def crashes(each: int) -> str:
    """A worker is killed (kill -9) at each place; its client retries. Orders are counted."""
    rows = []
    with running(*DURABLE) as server:
        ways: dict[str, Way] = {"this table": in_the_table, "Redis": in_redis(server, lease=200)}
        for place in ("before COMMIT", "after COMMIT, before the next statement", "after the last statement"):
            counted = dict.fromkeys(ways, 0)
            for _ in range(each):
                for name, way in ways.items():
                    counted[name] += orders_after_a_kill(way, place)
            rows.append([place, *(f"{count} orders" for count in counted.values())])
    return table([f"kill -9, then a retry; {each} keys", "this table", "Redis, appendfsync always"], rows)


def orders_after_a_kill(way: Way, place: str) -> int:
    key = str(uuid4())

    def work() -> int:
        pk = order(key)
        if place == "before COMMIT":
            kill_self()
        transaction.on_commit(kill_self if place.startswith("after COMMIT") else int)
        return pk

    connections.close_all()
    if (child := os.fork()) == 0:
        way(work, key)
        kill_self()
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    retried(way, key)
    return Order.objects.filter(reference=key).count()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def retried(way: Way, key: str) -> None:
    """As a client does: until there is an answer."""
    while True:
        with suppress(Busy, OperationInProgress):
            way(lambda: order(key), key)
            return
        time.sleep(0.02)


def losses(keys: int) -> str:
    """Redis is killed right after answers that their clients have lost. The clients retry."""
    rows = []
    for name, options in {"Debian's settings": AS_DEBIAN, "appendfsync always": DURABLE}.items():
        with running(*options) as server:
            names = answered(in_redis(server), keys)
            server.kill()
            server.start()
            rows.append([f"{keys} answers, Redis is killed and starts again: {name}", twice(in_redis(server), names)])
    for name, replicas in {"a replica 1 ms away": 0, "the same, each result waits for it (WAIT 1)": 1}.items():
        found = [failover(replicas) for _ in range(keys)]
        late = sum(seconds for seconds, confirmed in found if not confirmed)
        counted = f"{sum(seconds for seconds, _ in found)}, {late} of them after an error (`NotStored`)"
        rows.append([f"{keys} times one answer, the primary is lost, the replica takes over: {name}", counted])
    return table(["Redis only", "second orders"], rows)


def failover(replicas: int) -> tuple[int, bool]:
    """Appending always, on both. Gives the second orders, and whether the client had got its answer."""
    with running(*DURABLE) as primary, running(*DURABLE) as replica:
        line = Line(primary.port, AWAY)
        with replica.client() as client:
            client.replicaof("127.0.0.1", line.port)
            eventually("the replica's first copy", lambda: client.info("replication")["master_link_status"] == "up")
            confirmed, key, way = True, str(uuid4()), in_redis(primary, lease=1000, replicas=replicas)
            try:
                way(partial(order, key), key)
            except NotStored:
                confirmed = False
            line.cut()
            primary.kill()
            client.replicaof("NO", "ONE")
        return int(twice(in_redis(replica), [key])), confirmed


def answered(way: Way, keys: int) -> list[str]:
    names = [str(uuid4()) for _ in range(keys)]
    for name in names:
        way(partial(order, name), name)
    return names


def twice(way: Way, names: list[str]) -> str:
    """How many orders there are too many after each retry."""
    for name in names:
        retried(way, name)
    return str(Order.objects.filter(reference__in=names).count() - len(names))


def main() -> None:
    quick = begun(__doc__)
    for part in (costs(3, 10) if quick else costs(21, 60), crashes(3 if quick else 20), losses(5 if quick else 100)):
        print(part, end="\n\n")


if __name__ == "__main__":
    main()
