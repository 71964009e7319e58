"""Keys outside the database, with servers that are killed, hung, full, cut off and lost; then the effects are counted.

Short here. 200 rounds on each server there is: `BACKEND_ROUNDS=200 tox run -e backends`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis
from django.http import HttpResponse
from django.test import RequestFactory

from django_idempotency import get_operation, idempotent
from tests.backends import configured, in_redis, redis_server
from tests.extra.benchmarks.redis_server import Line, Server, missing
from tests.heard import heard
from tests.http import problem, replayed, same
from tests.servers import PLAIN, eventually, serving

ROUNDS = int(os.environ.get("BACKEND_ROUNDS", "2"))
DUPLICATES, WORKERS = 50, 4
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
pytestmark = [
    pytest.mark.only_on("postgresql"),  # they ask no database, so one has them
    pytest.mark.skipif(missing() != "", reason=f"NOT RUN: {missing()}"),
    pytest.mark.timeout(120 + 10 * ROUNDS),
]
EFFECTS: Counter[str] = Counter()


@pytest.fixture
def broker() -> Iterator[tuple[str, Any]]:
    with redis_server() as (url, _), redis.Redis.from_url(url) as client:
        yield url, client


@contextmanager
def workers(keys: dict[str, Any], broker_url: str, *options: str, lease: float = 30, **more: str) -> Iterator[str]:
    environment = {**os.environ, "KEYS": json.dumps(keys), "BROKER": broker_url, "LEASE": str(lease), **more}
    command = ("gunicorn", "tests.server.backends", "--bind", "fd://{fd}", "--preload", "--graceful-timeout", "1")
    with serving(*command, "--workers", str(WORKERS), "--threads", "16", *options, env=environment) as url:
        yield url


def send(url: str, key: str, **headers: str) -> httpx.Response | None:
    """None: the worker died."""
    try:
        return httpx.post(f"{url}/publish", content=b"{}", headers={"Idempotency-Key": key, **headers}, **PLAIN)
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("kind", ["redis", "valkey", "dynalite"])
def test_duplicates_at_once_have_one_effect(broker: Any, kind: str, record_property: Any) -> None:
    """50 on 4 processes, in each round: one runs, and the others get a conflict or its response.

    dynalite is an emulator: on a busy machine it can take longer than the client waits, which is a 503.
    """
    if kind != "redis" and ROUNDS == 2:
        pytest.skip(f"{kind} is for the long run: BACKEND_ROUNDS=200 tox run -e backends")
    address, books = broker
    with workers(configured(kind), address) as url, ThreadPoolExecutor(DUPLICATES) as pool:
        for _ in range(ROUNDS):
            key = str(uuid4())
            answers = list(pool.map(lambda _, key=key: send(url, key), range(DUPLICATES)))
            answers.append(
                eventually("a response", lambda key=key: (one := send(url, key)) and one.status_code == 201 and one)
            )
            answers.append(send(url, key))
            assert books.llen(f"effects:{key}") == 1
            met = Counter((one.status_code, replayed(one)) for one in answers if one is not None)
            assert met[201, "false"] == 1
            assert met[201, "true"] >= 1
            busy = {(503, "false")} if kind == "dynalite" else set()
            assert set(met) <= {(201, "false"), (201, "true"), (409, "false")} | busy
            assert {one.content for one in answers if one is not None and one.status_code == 201} == {
                f"{key} was published as 1".encode()
            }
    record_property("counted", {"requests": ROUNDS, "attempts": ROUNDS * DUPLICATES})


def test_a_killed_worker_repeats_its_effect(broker: Any) -> None:
    """That is what at least once means. Until the lease expires, retries get a conflict."""
    address, books = broker
    with workers(configured("redis"), address, lease=3) as url:
        key = str(uuid4())
        assert send(url, key, **{"X-Kill": "yes"}) is None
        answer = send(url, key)
        assert answer is not None
        assert (answer.status_code, books.llen(f"effects:{key}")) == (409, 1)
        eventually("the lease to expire", lambda: getattr(send(url, key), "status_code", None) == 201)
        assert books.llen(f"effects:{key}") == 2


@pytest.mark.parametrize("kind", ["redis", "valkey", "dynalite"])
def test_two_releases_run_a_request_once(broker: Any, kind: str) -> None:
    """The next release stores another format. On one server, at one time, with duplicates on both.

    The next one replays what this one has stored. What the next one has stored is busy for this one.
    """
    address, books = broker
    keys, one = configured(kind), ("--workers", "2")
    with (
        workers(keys, address, *one) as old,
        workers(keys, address, *one, RELEASE="next") as new,
        ThreadPoolExecutor(DUPLICATES) as pool,
    ):
        for first in (old, new):
            key = str(uuid4())
            told = [send(url, key) for url in (first, old, new, old, new)]
            met = [(one.status_code, replayed(one)) for one in told if one is not None]
            again = (201, "true") if first == old else (503, "false")
            assert met == [(201, "false"), again, (201, "true"), again, (201, "true")]
            assert books.llen(f"effects:{key}") == 1
        for _ in range(ROUNDS):
            key = str(uuid4())
            answers = list(pool.map(lambda number, key=key: send((old, new)[number % 2], key), range(DUPLICATES)))
            statuses = Counter(one.status_code for one in answers if one is not None)
            assert set(statuses) <= {201, 409, 503}
            assert (statuses[201] > 0, books.llen(f"effects:{key}")) == (True, 1)
            assert replayed(eventually("a response", lambda key=key: send(new, key))) == "true"


# --- in this process: what fails is the server of the keys


@pytest.fixture
def server() -> Iterator[Server]:
    """A durable Redis that can be killed and started again."""
    with tempfile.TemporaryDirectory(prefix="keys-") as folder:
        made = Server(folder, *DURABLE)
        try:
            yield made
        finally:
            made.process.send_signal(signal.SIGCONT)
            made.kill()


def address(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


@pytest.fixture
def posting(settings: Any) -> Callable[..., Callable[..., Any]]:
    """Give a function that posts to a view, which has its keys in this entry of BACKENDS, and calls `during`."""
    EFFECTS.clear()  # counts the effects of all views of a test

    def protect(entry: dict[str, Any], during: Callable[[Any], Any] = lambda request: None, **options: Any) -> Any:
        settings.IDEMPOTENCY = {"BACKENDS": {"events": entry}}

        @idempotent(**{"backend": "events", "lease": 30, "scope": lambda request: "s", "operation": "o", **options})
        def publish(request: Any) -> HttpResponse:
            key = get_operation(request).key or ""
            EFFECTS[key] += 1
            return HttpResponse(during(request) or f"{key} {EFFECTS[key]}", status=201)

        requests = RequestFactory()
        return lambda key="k": publish(requests.post("/", b"{}", "text/plain", headers={"Idempotency-Key": key}))

    return protect


def stop(server: Server) -> None:
    server.process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("fail", [Server.kill, stop], ids=["killed", "hung"])
def test_a_server_that_does_not_answer_a_claim(server: Server, posting: Any, fail: Any) -> None:
    """503 after two seconds at most, and nothing has run."""
    post = posting(in_redis(address(server)))
    post("before")
    fail(server)
    refused = post()
    assert (refused.status_code, problem(refused)["code"], EFFECTS["k"]) == (503, "busy", 0)
    server.start() if fail is not stop else server.process.send_signal(signal.SIGCONT)
    assert (replayed(post("before")), EFFECTS["before"]) == ("true", 1)  # the append-only file has it


@pytest.mark.parametrize("fail", [Server.kill, stop], ids=["killed", "hung"])
def test_a_server_that_does_not_take_the_result(server: Server, posting: Any, fail: Any) -> None:
    """The client gets the response, and a retry after the lease runs again."""
    post = posting(in_redis(address(server)), lambda request: fail(server) if EFFECTS["k"] == 1 else None, lease=3)
    with heard("unstored") as told:
        answer = post()
    assert (answer.status_code, replayed(answer), len(told)) == (201, "false", 1)
    server.start() if fail is not stop else server.process.send_signal(signal.SIGCONT)
    eventually("a response", lambda: post().status_code == 201)
    assert EFFECTS["k"] in (1, 2)  # 1: the hung server has stored the result as soon as it went on
    assert fail is stop or EFFECTS["k"] == 2


def test_a_server_that_restarts_while_the_view_runs(server: Server, posting: Any) -> None:
    """Its append-only file has the claim, and the result takes its place."""

    def during(request: Any) -> None:
        server.kill()
        server.start()

    post = posting(in_redis(address(server)), during)
    with heard() as told:
        assert [replayed(post()), replayed(post())] == ["false", "true"]
    assert ([one["event"] for one in told], EFFECTS["k"]) == (["claimed", "completed", "replayed"], 1)


def test_a_zombie_gets_the_winners_response(server: Server, posting: Any) -> None:
    """Its lease has expired, another request has run, and it stores nothing."""

    def during(request: Any) -> None:
        if EFFECTS["k"] == 1:
            winner.append(eventually("the lease to expire", lambda: (one := post()).status_code == 201 and one))

    winner: list[Any] = []
    post = posting(in_redis(address(server)), during, lease=0.3)
    zombie = post()
    assert (zombie.content, replayed(zombie), same(zombie, winner[0])) == (b"k 2", "true", True)
    assert (same(post(), zombie), EFFECTS["k"]) == (True, 2)


def filled(posting: Any, url: str, policy: str) -> tuple[int, int]:
    """After 100 responses, which the memory does not hold: how many were kept, and how many of them ran again."""
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 3 * 1024 * 1024)
        client.config_set("maxmemory-policy", policy)
    post = posting(in_redis(url), lambda request: b"x" * 60_000)
    with heard("completed") as told:
        for number in range(100):
            post(str(number))
    kept = [one["identity"].key for one in told]
    again = [key for key in kept if (post(key), EFFECTS[key])[1] == 2]
    return len(kept), len(again)


def test_a_full_memory_refuses_or_forgets(server: Server, posting: Any) -> None:
    """`noeviction` takes no more, and forgets nothing; a cache's policy forgets, and the retries run again."""
    kept, again = filled(posting, address(server), "noeviction")
    assert (0 < kept < 100, again) == (True, 0)
    server.client().flushall()
    EFFECTS.clear()
    kept, again = filled(posting, address(server), "allkeys-lru")
    assert (kept, again > 0) == (100, True)


def follows(server: Server) -> None:
    """Wait until the replica has a write."""
    with server.client() as client:
        eventually("the replica to follow", lambda: client.set("probe", 1) and client.wait(1, 500))


def test_a_lost_primary(server: Server, posting: Any) -> None:
    """Without `replicas`, a failover forgets what its replica has not got; with it, no claim counts without one."""
    line = Line(server.port, 0)
    with redis_server("--replicaof", "127.0.0.1", str(line.port)) as (replica, _):
        follows(server)
        safe = posting(in_redis(address(server), replicas=1))
        assert (safe("kept").status_code, replayed(safe("kept"))) == (201, "true")
        line.cut()
        refused = [safe("refused").status_code for _ in range(2)]
        assert (refused, EFFECTS) == ([503, 409], {"kept": 1})  # the claim stays on the primary until its lease expires
        assert posting(in_redis(address(server)))("lost").status_code == 201
        server.kill()
        with redis.Redis.from_url(replica) as client:
            client.replicaof("NO", "ONE")
        after = posting(in_redis(replica))
        assert (replayed(after("kept")), replayed(after("lost")), EFFECTS) == ("true", "false", {"kept": 1, "lost": 2})


class Losing:
    """A line to a server that loses an answer when told to: the command takes effect, and nobody hears of it."""

    def __init__(self, port: int) -> None:
        self.lose = 0
        self.commands = 0
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server, suppress(OSError):
            while command := client.recv(1 << 20):
                server.sendall(command)
                answer = server.recv(1 << 20)
                self.commands += b"EVAL" in command
                if b"EVAL" in command and self.lose:
                    self.lose -= 1
                    return
                client.sendall(answer)


@pytest.mark.parametrize(("lost", "status", "effects"), [(0, 201, 1), (1, 201, 1), (2, 503, 0)])
def test_an_answer_that_is_lost_on_its_way(server: Server, posting: Any, lost: int, status: int, effects: int) -> None:
    """A claim that took effect unheard is known again by its token. After two lost answers it waits for its lease."""
    line = Losing(server.port)
    line.lose = lost
    post = posting(in_redis(f"redis://127.0.0.1:{line.port}"))
    assert (post().status_code, EFFECTS["k"]) == (status, effects)
    retry = post()
    assert (retry.status_code, EFFECTS["k"]) == (201 if effects else 409, effects)
    assert line.commands == {0: 3, 1: 4, 2: 3}[lost]


def test_the_commands_are_counted(server: Server, posting: Any) -> None:
    """Two for a first request, one for a replay, and nothing beside them; with replicas, WAIT goes along with each."""
    with redis_server("--replicaof", "127.0.0.1", str(server.port)) as _, server.client() as client:
        follows(server)
        for replicas, waits in ((0, None), (1, {"first": 2, "replay": 1})):
            post = posting(in_redis(address(server), replicas=replicas), operation=f"o{replicas}")
            post("warm up")
            for what, evals in (("first", 2), ("replay", 1)):
                client.config_resetstat()
                post()
                stats = client.info("commandstats")
                assert stats["cmdstat_eval"]["calls"] == evals
                assert stats.get("cmdstat_wait", {}).get("calls") == (waits and waits[what])


@pytest.mark.parametrize("kind", ["redis", "moto", "dynalite"])
@pytest.mark.parametrize("size", [200_000, 1024 * 1024])
def test_large_bodies(posting: Any, kind: str, size: int) -> None:
    """Redis takes what the package stores. A longer one than DynamoDB's 400 KB leaves a tombstone, and runs once."""
    body, key = os.urandom(size), str(uuid4())
    post = posting(configured(kind), lambda request: body)
    first, second = post(key), post(key)
    assert (first.content, EFFECTS[key]) == (body, 1)
    if kind == "redis" or size == 200_000:
        assert (same(first, second), replayed(second)) == (True, "true")
    else:
        assert problem(second)["code"] == "response-not-stored"
