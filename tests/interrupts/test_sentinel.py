"""Keys in Redis behind Sentinel, whose primary dies or hangs while requests run."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from django_idempotency import OperationInProgress, StoreBusy, run_once
from django_idempotency.backends.redis import TIMEOUT, RedisBackend
from tests.backends import free_port, redis_command, redis_server
from tests.heard import heard
from tests.servers import eventually

CLIENTS, SENTINELS, REPLICAS, BEFORE = 4, 3, 2, 25
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.server]  # they ask no database, so one has them


class SentinelBackend(RedisBackend):
    """`url` has the sentinels' ports. Each new connection goes to the server that they call the primary."""

    def connect(self) -> Any:
        limits: dict[str, Any] = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        ports = [("127.0.0.1", int(port)) for port in self.url.split(",")]
        sentinel = Sentinel(ports, sentinel_kwargs=limits)
        return sentinel.master_for("keys", retry=Retry(NoBackoff(), 0), **limits)


@dataclass
class Watched:
    """A primary with its replicas, and the sentinels that watch them."""

    primary: subprocess.Popen[bytes]
    replicas: list[subprocess.Popen[bytes]]
    ports: str

    def signal_replicas(self, number: signal.Signals) -> None:
        for replica in self.replicas:
            replica.send_signal(number)

    def at(self) -> Any:
        """The port of the server that all the sentinels call the primary, or None while they disagree."""
        told = set()
        for port in self.ports.split(","):
            with redis.Redis(port=int(port), decode_responses=True) as sentinel:
                told.add(sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME keys")[1])
        return told.pop() if len(told) == 1 else None


@contextmanager
def _sentinel(folder: str, primary: str) -> Iterator[str]:
    port, config = free_port(), Path(folder, f"{uuid4()}.conf")
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor keys 127.0.0.1 {primary} 2\n"
        "sentinel down-after-milliseconds keys 500\nsentinel failover-timeout keys 2000\n"
    )
    command = [*redis_command(), config, "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield str(port)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def watched(settings: Any) -> Iterator[Watched]:
    durable = ("--appendonly", "yes", "--maxmemory-policy", "noeviction", "--repl-timeout", "2")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url, primary = stack.enter_context(redis_server(*durable))
        port = url.rpartition(":")[2]
        follows = (*durable, "--replicaof", "127.0.0.1", port)
        replicas = [stack.enter_context(redis_server(*follows))[1] for _ in range(REPLICAS)]
        found = Watched(
            primary, replicas, ",".join(stack.enter_context(_sentinel(folder, port)) for _ in range(SENTINELS))
        )

        def knows_all(port: str) -> bool:
            with suppress(redis.RedisError), redis.Redis(port=int(port), decode_responses=True) as sentinel:
                (keys,) = sentinel.sentinel_masters().values()
                return (keys["num-slaves"], keys["num-other-sentinels"]) == (REPLICAS, SENTINELS - 1)
            return False

        for each in found.ports.split(","):
            eventually("the sentinel to know all the others", lambda each=each: knows_all(each))
        options = {"url": found.ports, "replicas": 1}
        settings.IDEMPOTENCY = {
            "BACKENDS": {"events": {"BACKEND": "tests.interrupts.test_sentinel.SentinelBackend", "OPTIONS": options}}
        }
        yield found


@pytest.mark.parametrize("failure", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs, and comes back"])
def test_a_failover_loses_no_key(watched: Watched, failure: signal.Signals, record_property: Any) -> None:
    """With `replicas=1`: each response that was stored is replayed by the new primary, and its work ran once.

    The replicas hang before the primary does, so what it takes meanwhile is lost: it must not grant a key.
    """
    effects, answered, refused, stop, first = Counter[str](), dict[str, Any](), list[str](), Event(), watched.at()

    def send(key: str) -> Any:
        def work() -> str:
            effects[key] += 1
            return f"published {key}"

        try:
            return run_once(work, scope="s", key=key, operation="publish", backend="events", lease=60)
        except (StoreBusy, OperationInProgress):
            refused.append(key)
            return None

    def client() -> int:
        attempts = 0
        while not stop.is_set():
            key = str(uuid4())
            attempts += 1
            if (outcome := send(key)) is not None:
                answered[key] = outcome.value
        return attempts

    with heard("unstored") as told, ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            eventually("responses before the failure", lambda: len(answered) > BEFORE)
            watched.signal_replicas(signal.SIGSTOP)
            eventually("refusals while no replica confirms", lambda: len(refused) > 2 * CLIENTS)
            watched.primary.send_signal(failure)
            watched.signal_replicas(signal.SIGCONT)
            eventually("another primary", lambda: watched.at() not in (None, first))
            watched.primary.send_signal(signal.SIGCONT)  # nothing, if it has died
            since = len(answered)
            eventually("responses after the failure", lambda: len(answered) > since + BEFORE)
        finally:
            stop.set()
    attempts = sum(each.result() for each in clients)
    unstored = {one["identity"].key for one in told}
    assert len(unstored) <= CLIENTS  # one in flight for each
    assert max(effects.values()) == 1
    for key in answered.keys() - unstored:
        outcome = eventually("the response", lambda key=key: send(key))
        assert (outcome.value, outcome.replayed, effects[key]) == (answered[key], True, 1)
    record_property("counted", {"requests": len(answered), "attempts": attempts + len(answered)})
