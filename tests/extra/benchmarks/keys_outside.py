"""What a key costs a view that publishes: `python -m tests.extra.benchmarks.keys_outside`, six minutes; --quick: fewer.

It needs `redis-server` (Debian's package), and starts servers of its own: one for the events, and one for the keys of
each way. Other packages, which it installs by name, do the same work with their keys in Redis. It prints two tables:
one request, and requests a second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tests.extra.benchmarks import stage

stage.build()

from django.db import connection
from django.test import RequestFactory, override_settings

from tests.backends import MEMORY, in_redis
from tests.extra.benchmarks.conditions import begun
from tests.extra.benchmarks.load import BODY, Load, result
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.redis_server import AS_DEBIAN, DURABLE, Server, running
from tests.servers import eventually, process, server_environment, serving
from tests.tap import tapped

ROOT = Path(__file__).parents[3]
CLIENTS, WORKERS = 20, 4
OURS = "django.core.wsgi:get_wsgi_application()"
THEIRS = "tests.extra.benchmarks.publishing_peers:application"
PEERS = {"drf": "drf-idempotency 1.0.0, Redis", "idemkit": "idemkit 1.0.2, Redis"}
REQUIREMENTS = ("drf-idempotency==1.0.0", "idemkit==1.0.2", "django", "redis", "gunicorn")
"""With the newest Django that they allow together. Each is compared with the bare view on that Django."""
TICK = 1e6 / os.sysconf("SC_CLK_TCK")
"""Microseconds of the unit in which Linux counts a process's CPU."""


@dataclass(frozen=True)
class Way:
    """Where a view has its keys: the path of the view, what runs it, and whose CPU keeping its keys takes."""

    path: str
    title: str
    runs: str
    servers: Callable[[], list[int]]
    redis: Server | None = None


@dataclass
class Figures:
    """Of one case, in each round: seconds, seconds of the application's CPU, and microseconds of the servers' CPU."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)


def postgresql() -> list[int]:
    """The process ids of the server, if it runs on this machine and tells this user where."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW data_directory")
        folder = Path(cursor.fetchone()[0])
    first = int((folder / "postmaster.pid").read_text().split()[0])
    return [
        first,
        *(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if stat(pid)[1:2] == [str(first)]),
    ]


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the program's name; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def used(pids: list[int]) -> float:
    """Microseconds of CPU, of children that have ended, too."""
    return TICK * sum(int(ticks) for pid in pids for ticks in stat(pid)[11:15])


def address(server: Server) -> str:
    return f"unix://{server.address}"


def environment(folder: Path) -> Path:
    """A Python with the other packages. Prints its Django."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *REQUIREMENTS], check=True)
    subprocess.run([python, "-c", "import django; print('Other packages on Django', django.__version__)"], check=True)
    return python


class Bench:
    """All ways, and what runs each: a process that sends requests, or a server."""

    def __init__(self, stack: ExitStack) -> None:
        start = lambda *options: stack.enter_context(running(*options))  # noqa: E731
        self.python = environment(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))))
        os.environ["BROKER"] = address(start(*AS_DEBIAN))
        default, always, primary = start(*AS_DEBIAN), start(*DURABLE), start(*AS_DEBIAN)
        replica = start("--replicaof", "127.0.0.1", str(primary.port))
        with primary.client() as client:
            eventually("the replica to follow", lambda: client.set("probe", 1) and client.wait(1, 500))
        entries = {
            "default": in_redis(address(default)),
            "always": in_redis(address(always)),
            "replicas": in_redis(address(primary), replicas=1),
            "memory": MEMORY,
        }
        stack.enter_context(override_settings(IDEMPOTENCY={"BACKENDS": entries}))
        settings = {"DJANGO_SETTINGS_MODULE": "tests.extra.benchmarks.publishing_settings", "KEYS": json.dumps(entries)}
        self.environments = {"ours": server_environment(**settings)}
        asked = {"default": [default], "always": [always], "replicas": [primary, replica]}
        from tests.extra.benchmarks.publishing import VIEWS

        self.views = {name: view for name, (_, view) in VIEWS.items()}
        self.ways = [
            Way(name, title, "ours", *self._kept(name, asked.get(name, []))) for name, (title, _) in VIEWS.items()
        ]
        for name, title in PEERS.items():
            server = start(*AS_DEBIAN)
            self.environments[name] = {
                **{key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"},
                "PYTHONPATH": str(ROOT),
                "PEER": name,
                "KEYS": address(server),
            }
            self.ways.append(Way("bare", "bare", name, list))
            self.ways.append(Way(name, title, name, *self._kept(name, [server])))

    def _kept(self, name: str, servers: list[Server]) -> tuple[Callable[[], list[int]], Server | None]:
        if name in ("atomic", "leased"):
            return postgresql, None
        pids = [server.process.pid for server in servers]
        return (lambda: pids), servers[0] if servers else None

    def _started(self, name: str) -> tuple[str | Path, str]:
        return (sys.executable, OURS) if name == "ours" else (self.python, THEIRS)

    @contextmanager
    def sending(self) -> Iterator[Callable[..., list[float]]]:
        """A function that sends requests of a way, and gives the seconds that they took, and those of CPU."""
        with ExitStack() as stack:
            senders: dict[str, Popen[bytes]] = {}
            for name, env in self.environments.items():
                python, application = self._started(name)
                command = (python, "-m", "tests.extra.benchmarks.sender", application)
                senders[name] = stack.enter_context(process(*command, env=env, stdin=PIPE, stdout=PIPE, stderr=None))

            def send(way: Way, key: str, number: int) -> list[float]:
                sender = senders[way.runs]
                assert sender.stdin is not None
                assert sender.stdout is not None
                sender.stdin.write(json.dumps([way.path, key, number]).encode() + b"\n")
                sender.stdin.flush()
                line = sender.stdout.readline()
                assert line, "the process that sends has ended: see above"
                return list(json.loads(line))

            yield send

    @contextmanager
    def serving(self) -> Iterator[dict[str, int]]:
        """The port of each server."""
        with ExitStack() as stack:
            ports = {}
            for name, env in self.environments.items():
                python, application = self._started(name)
                command = ("gunicorn", application, "--bind", "fd://{fd}", "--workers", str(WORKERS))
                ports[name] = urlsplit(stack.enter_context(serving(*command, env=env, python=python))).port or 0
            yield ports


def one_request(bench: Bench, rounds: int, each: int) -> str:
    """Each way in turn in each round, so that a busy moment of the machine meets all."""
    done = str(uuid4())
    figures = {(way, case): Figures() for way in bench.ways for case in ("first", "replay")}
    with bench.sending() as send:
        for way in bench.ways:
            send(way, done, 1)
            send(way, "", 10)
        for _ in range(rounds):
            for (way, case), found in figures.items():
                before = used(pids := way.servers())
                wall, cpu = send(way, done if case == "replay" else "", each)
                found.served.append((used(pids) - before) / each)
                found.wall.append(wall)
                found.cpu.append(cpu)
        trips = {way: [str(round_trips(bench, send, way, key)) for key in ("", done)] for way in bench.ways}
    rows = []
    for way in bench.ways:
        first, replay = figures[way, "first"], figures[way, "replay"]
        bare = next(figures[other, "first"] for other in bench.ways if (other.runs, other.path) == (way.runs, "bare"))
        if way.path == "bare":
            if way.runs == "ours":
                rows.append(
                    [f"bare view: {statistics.median(first.wall) / each * 1e6:.0f} µs", "×1", "×1", "–", "–", "–"]
                )
            continue
        cells = [ratio(first.wall, bare.wall), ratio(first.cpu, bare.cpu)]
        served = f"{statistics.mean(first.served):.0f} µs" if way.servers() else "–"
        rows.append([way.title, *cells, served, ratio(replay.wall, bare.wall), " / ".join(trips[way])])
    return table(
        ["a view that publishes, × without a key", "first", "CPU", "server CPU", "replay", "round trips"], rows
    )


def ratio(these: list[float], bare: list[float]) -> str:
    return f"×{statistics.median(a / b for a, b in zip(these, bare, strict=True)):.2f}"


def round_trips(bench: Bench, send: Callable[..., Any], way: Way, key: str) -> int:
    """What the place of the keys is asked for one request."""
    if way.redis is not None:
        return commands(way.redis, lambda: send(way, key, 1))
    if way.servers is not postgresql:
        return 0
    keys = [str(uuid4())] * 2 if key else [str(uuid4()), str(uuid4())]
    with tapped() as tap:
        for one in keys:  # the first one prepares the connection, or makes what is replayed
            tap.take()
            headers = {"Idempotency-Key": one}
            request = RequestFactory().post("/", BODY, content_type="application/json", headers=headers)
            assert bench.views[way.path](request).status_code == 201
        return len(tap.take())


def commands(server: Server, call: Callable[[], Any]) -> int:
    """Commands of the clients, and not of scripts. WAIT goes along with the command before it."""
    with server.client() as other, server.client() as client:
        other.ping()
        with client.monitor() as monitor:
            call()
            other.echo("end")
            counted = 0
            for seen in monitor.listen():
                if seen["command"] == "ECHO end":
                    return counted
                counted += seen["client_type"] != "lua" and not seen["command"].startswith("WAIT")
    raise AssertionError("Redis ended")


def at_once(bench: Bench, rounds: int, seconds: float) -> str:
    ways = [way for way in bench.ways if way.path != "memory"]  # which is of one process
    rates: dict[Way, list[float]] = {way: [] for way in ways}
    with bench.serving() as ports:
        for _ in range(rounds):
            for way in ways:
                elapsed, taken = result(Load(ports[way.runs], CLIENTS, seconds, path=way.path).start())
                rates[way].append(len(taken) / elapsed)
    rows = []
    for way in ways:
        bare = next(rates[other] for other in ways if (other.runs, other.path) == (way.runs, "bare"))
        ratios = [one / other for one, other in zip(rates[way], bare, strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        if way.path != "bare" or way.runs == "ours":
            spread = f"×{middle:.2f} ({low:.2f}–{high:.2f})"
            rows.append([way.title, f"{statistics.median(rates[way]):.0f}", spread])
    return table([f"{CLIENTS} clients, {WORKERS} processes", "requests/s", "of the bare view's"], rows)


def main() -> None:
    quick = begun(__doc__)
    with ExitStack() as stack:
        bench = Bench(stack)
        print(one_request(bench, *((2, 20) if quick else (15, 200))), "\n")
        print(at_once(bench, *((1, 0.5) if quick else (5, 3))), "\n")
    print(
        "Ratios to the bare view in the same process and round, or on the same server. Server CPU: of a first request,"
    )
    print("in PostgreSQL or in the Redis of the keys with its replica.")


if __name__ == "__main__":
    main()
