"""What a key costs a view that publishes: `python -m tests.benchmarks.keys_outside`, five minutes; --quick: fewer.

It needs `redis-server` (Debian's package), and starts servers of its own on loopback: one for the events, one for the
keys of each way. It prints two tables of docs/where.md: one request, and requests a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tests.benchmarks import stage

stage.build()

import redis
from django.db import connection
from django.http import HttpRequest
from django.test import RequestFactory, override_settings

from tests.backends import MEMORY, in_redis
from tests.benchmarks.load import BODY, Load, result
from tests.benchmarks.page import table
from tests.benchmarks.redis_server import AS_DEBIAN, DURABLE, Server, missing, running
from tests.servers import eventually, gunicorn
from tests.tap import tapped

CLIENTS, WORKERS = 20, 4
FACTORY = RequestFactory()


@dataclass
class Figures:
    """Of one case, in each round: seconds, and seconds of this process's CPU."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def ratios(self, bare: Figures) -> tuple[float, float]:
        pairs = ((self.wall, bare.wall), (self.cpu, bare.cpu))
        wall, cpu = (statistics.median(a / b for a, b in zip(*pair, strict=True)) for pair in pairs)
        return wall, cpu


def timed(figures: Figures, call: Any, each: int) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(each):
        call()
    figures.cpu.append(time.process_time() - cpu)
    figures.wall.append(time.perf_counter() - wall)


def request(key: str | None = None) -> HttpRequest:
    headers = {"Idempotency-Key": key or str(uuid4())}
    return FACTORY.post("/events/", BODY, content_type="application/json", headers=headers)


@contextmanager
def servers() -> Iterator[dict[str, Any]]:
    """The entries of BACKENDS. The servers of the events and of the keys run until the end."""
    with ExitStack() as stack:
        start = lambda *options: stack.enter_context(running(*options))  # noqa: E731
        os.environ["BROKER"] = address(start(*AS_DEBIAN))
        default, always, primary = start(*AS_DEBIAN), start(*DURABLE), start(*AS_DEBIAN)
        start("--replicaof", "127.0.0.1", str(primary.port))
        with primary.client() as client:
            eventually("the replica to follow", lambda: client.set("probe", 1) and client.wait(1, 500))
        entries = {
            "default": in_redis(address(default)),
            "always": in_redis(address(always)),
            "replicas": in_redis(address(primary), replicas=1),
            "memory": MEMORY,
        }
        os.environ["KEYS"] = json.dumps(entries)
        with override_settings(IDEMPOTENCY={"BACKENDS": entries}):
            yield entries


def address(server: Server) -> str:
    return f"unix://{server.address}"


def one_request(entries: dict[str, Any], rounds: int, each: int) -> str:
    """Each way in turn in each round, so that a busy moment of the machine meets all."""
    from tests.benchmarks.publishing import VIEWS

    done = str(uuid4())
    sends: dict[tuple[str, str], Any] = {}
    for name, (_, view) in VIEWS.items():
        view(request(done))
        sends[name, "first"] = partial(send, view)
        sends[name, "replay"] = partial(send, view, done)
    figures = {case: Figures() for case in sends}
    for _ in range(rounds):
        for case, call in sends.items():
            timed(figures[case], call, each)
    bare, rows = figures["bare", "first"], []
    for name, (title, _) in VIEWS.items():
        first, replay = figures[name, "first"], figures[name, "replay"]
        trips = [str(round_trips(entries.get(name), sends[name, case], name)) for case in ("first", "replay")]
        cells = [f"×{ratio:.2f}" for ratio in (*first.ratios(bare), replay.ratios(bare)[0])]
        rows.append([title, *cells, " / ".join(trips)] if name != "bare" else [title, "×1", "×1", "–", "–"])
    return table(["a view that publishes, × without a key", "first", "CPU", "replay", "round trips"], rows)


def send(view: Any, key: str | None = None) -> None:
    assert view(request(key)).status_code == 201


def round_trips(entry: dict[str, Any] | None, call: Any, name: str) -> int:
    """What the place of the keys was asked: messages to PostgreSQL, or commands that Redis counted."""
    if name in ("bare", "memory"):
        return 0
    if entry is not None:
        with redis.Redis.from_url(entry["OPTIONS"]["url"]) as client:
            client.config_resetstat()
            call()
            return int(client.info("commandstats")["cmdstat_eval"]["calls"])
    with tapped() as tap:
        call()
        tap.take()
        call()
        return len(tap.take())


def at_once(rounds: int, seconds: float) -> str:
    from tests.benchmarks.publishing import MEMORY as OF_ONE_PROCESS
    from tests.benchmarks.publishing import VIEWS

    names = [name for name in VIEWS if name not in OF_ONE_PROCESS]
    rates: dict[str, list[float]] = {name: [] for name in names}
    project = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.publishing_settings"}
    application = "django.core.wsgi:get_wsgi_application()"
    with gunicorn("--workers", str(WORKERS), application=application, **project) as url:
        for _ in range(rounds):
            for name in names:
                elapsed, taken = result(Load(urlsplit(url).port or 0, CLIENTS, seconds, path=name).start())
                rates[name].append(len(taken) / elapsed)
    rows = []
    for name in names:
        ratios = [one / bare for one, bare in zip(rates[name], rates["bare"], strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        rows.append([VIEWS[name][0], f"{statistics.median(rates[name]):.0f}", f"×{middle:.2f} ({low:.2f}–{high:.2f})"])
    return table([f"{CLIENTS} clients, {WORKERS} processes", "requests/s", "of the bare view's"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run, whose figures mean nothing")
    quick = parser.parse_args().quick
    if reason := missing():
        raise SystemExit(f"NOT RUN: {reason}. On Debian: apt install redis-server")
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
    with servers() as entries:
        print(f"PostgreSQL {version}, redis-py {redis.__version__}; load of the machine: {os.getloadavg()[0]:.1f}\n")
        print(one_request(entries, *((2, 10) if quick else (15, 200))), "\n")
        print(at_once(*((1, 0.5) if quick else (5, 3))))


if __name__ == "__main__":
    main()
