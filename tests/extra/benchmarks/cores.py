"""What one core gives: the database has one of its own, and the workers share another one."""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.extra.benchmarks.load import Load, result
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.processes import child, cpu, on_core, postmaster
from tests.extra.benchmarks.server import serving

TITLE = "The database on a core of its own"
WORKERS = (1, 2, 4, 8)
CASES: dict[str, dict[str, Any]] = {
    "bare view": {"path": "bare"},
    "first request": {},
    "replay": {"new_keys": False},
}


@dataclass
class Figures:
    """Of one case with so many workers, in each round. CPU: microseconds of one request."""

    rates: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    database: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def ratio(self, bare: Figures) -> float:
        return statistics.median(a / b for a, b in zip(self.rates, bare.rates, strict=True))


Measured = dict[str, dict[int, Figures]]


def measure(*, quick: bool) -> Measured:
    """The clients have the database's core: the core of the workers is the one that is full first."""
    numbers, rounds, seconds = ((1, 4), 1, 0.5) if quick else (WORKERS, 3, 1)
    measured = {name: {number: Figures() for number in numbers} for name in CASES}
    databases, workers = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    database = postmaster()
    with on_core(databases, database):
        for number in numbers:
            with ExitStack() as stack:
                with on_core(workers):
                    port = stack.enter_context(serving(number))
                with on_core(databases):
                    for _ in range(rounds):
                        for name, case in CASES.items():
                            _measure(measured[name][number], Load(port, 2 * number, seconds, **case), database)
    return measured


def _measure(figures: Figures, load: Load, database: int) -> None:
    server = child("gunicorn")
    before = cpu(server), cpu(database)
    elapsed, taken = result(load.start())
    requests = len(taken) + load.clients  # each client sends one before the measured ones
    figures.rates.append(len(taken) / elapsed)
    figures.workers.append((cpu(server) - before[0]) / requests * 1e6)
    figures.database.append((cpu(database) - before[1]) / requests * 1e6)


def told(measured: Measured) -> str:
    bare = measured["bare view"]
    head = ["requests/s, × the bare view's", *(_named(number) for number in bare)]
    rates = [
        [name, *(f"{one.rate:.0f}, ×{one.ratio(bare[number]):.2f}" for number, one in figures.items())]
        for name, figures in measured.items()
    ]
    most = max(bare)
    costs = [
        [
            name,
            f"{statistics.median(figures[most].workers):.0f} µs",
            f"{statistics.median(figures[most].database):.0f} µs",
            f"{1e6 / statistics.median(figures[most].database):,.0f}",
        ]
        for name, figures in measured.items()
    ]
    cost_head = [
        f"CPU of one request, {_named(most)}",
        "the worker's",
        "PostgreSQL's",
        "requests/s for each core of it",
    ]
    return f"{table(head, rates)}\n\n{table(cost_head, costs)}"


def _named(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def drawn(measured: Measured) -> dict[str, str]:
    return {}
