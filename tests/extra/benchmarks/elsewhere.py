"""SQLite, MariaDB and MySQL: requests beside the bare view there, and how fast expired keys go.

A process for each: `tests.extra.benchmarks.one_requests`, `tests.extra.benchmarks.one_cleanup`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tests.extra.benchmarks import mariadb, mysql
from tests.extra.benchmarks.page import table

TITLE = "Other databases"


@dataclass(frozen=True)
class Requests:
    """What the process prints: microseconds of each case in each round."""

    database: str
    microseconds: dict[str, list[float]]

    def told(self, case: str) -> str:
        ours, bare = self.microseconds[case], self.microseconds["bare view"]
        ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
        return f"{min(ours):.0f} µs, ×{ratio:.2f}"


@dataclass(frozen=True)
class Cleanup:
    """What the process prints. worst: seconds; grown: megabytes."""

    database: str
    rows: int
    rate: float
    worst: float
    grown: float


@dataclass(frozen=True)
class Measured:
    requests: list[Requests]
    cleanups: list[Cleanup]
    missing: dict[str, str]
    """Why a database was not measured."""


def measure(*, quick: bool) -> Measured:
    rounds, each = (3, 10) if quick else (15, 30)
    expired, living = (30_000, 5_000) if quick else (100_000, 20_000)
    servers = [nullcontext("sqlite:///:memory:")]  # the tests make a file of it
    missing = {}
    for name, server in {"MariaDB": mariadb, "MySQL": mysql}.items():
        if reason := server.missing():
            missing[name] = reason
        else:
            servers.append(server.running())
    requests, cleanups = [], []
    for running in servers:
        with running as url:
            requests.append(Requests(**_in_a_process(url, "one_requests", rounds, each)))
            cleanups.append(Cleanup(**_in_a_process(url, "one_cleanup", expired, living)))
    return Measured(requests, cleanups, missing)


def _in_a_process(url: str, module: str, *numbers: int) -> Any:
    command = [sys.executable, "-m", f"tests.extra.benchmarks.{module}", *map(str, numbers)]
    environment = {**os.environ, "DATABASE_URL": url}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def told(measured: Measured) -> str:
    cases = ("bare view", "first request", "replay")
    requests = [[one.database, *(one.told(case) for case in cases)] for one in measured.requests]
    cleanups = [
        [one.database, f"{one.rows:,}", f"{one.rate:,.0f}", f"{one.worst * 1000:.0f} ms", f"{one.grown:.1f} MB"]
        for one in measured.cleanups
    ]
    written = [
        table(["", *(f"{case}, at best" for case in cases)], requests),
        table(["cleanup", "keys deleted", "keys/s", "worst batch", "memory grown"], cleanups),
    ]
    notes = [f"{name} was not measured: {reason}." for name, reason in measured.missing.items()]
    return "\n\n".join([*written, *notes])


def drawn(measured: Measured) -> dict[str, str]:
    return {}
