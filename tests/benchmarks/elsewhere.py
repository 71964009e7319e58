"""How fast expired keys go on SQLite, MariaDB and MySQL: a process for each, `tests.benchmarks.one_cleanup`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass

from tests.benchmarks import mariadb, mysql
from tests.benchmarks.page import table

TITLE = "Cleanup on other databases"


@dataclass(frozen=True)
class Figures:
    """What the process prints. worst: seconds; grown: megabytes."""

    database: str
    rows: int
    rate: float
    worst: float
    grown: float


@dataclass(frozen=True)
class Measured:
    figures: list[Figures]
    missing: dict[str, str]
    """Why a database was not measured."""


def measure(*, quick: bool) -> Measured:
    expired, living = (30_000, 5_000) if quick else (300_000, 50_000)
    servers = [nullcontext("sqlite:///:memory:")]  # the tests make a file of it
    missing = {}
    for name, server in {"MariaDB": mariadb, "MySQL": mysql}.items():
        if reason := server.missing():
            missing[name] = reason
        else:
            servers.append(server.running())
    measured = []
    for running in servers:
        with running as url:
            measured.append(_in_a_process(url, expired, living))
    return Measured(measured, missing)


def _in_a_process(url: str, expired: int, living: int) -> Figures:
    command = [sys.executable, "-m", "tests.benchmarks.one_cleanup", str(expired), str(living)]
    environment = {**os.environ, "DATABASE_URL": url}
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Figures(**json.loads(printed))


def told(measured: Measured) -> str:
    rows = [
        [one.database, f"{one.rows:,}", f"{one.rate:,.0f}", f"{one.worst * 1000:.0f} ms", f"{one.grown:.1f} MB"]
        for one in measured.figures
    ]
    written = table(["", "keys deleted", "keys/s", "worst batch", "memory grown"], rows)
    notes = [f"{name} was not measured: {reason}." for name, reason in measured.missing.items()]
    return "\n\n".join([written, *notes])


def drawn(measured: Measured) -> dict[str, str]:
    return {}
