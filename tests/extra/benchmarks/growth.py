"""What a key takes on disk, and what the size of the table does to requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from django.db import connection

from tests.extra.benchmarks import plots
from tests.extra.benchmarks.filling import add, truncate
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.requests import request
from tests.extra.benchmarks.views import bare, protected

TITLE = "Growth of the table"
CASES = ("bare view", "first request", "replay")
TABLE = "django_idempotency_idempotencykey"
PARTS = {
    "table": TABLE,
    "unique index": "idempotency_key_uniq",
    "index of `expires_at`": "idempotency_expires_idx",
    "primary key": f"{TABLE}_pkey",
}


@dataclass(frozen=True)
class Figures:
    """Of a table with so many rows: microseconds of each case in each round, and bytes for each row by part."""

    rows: int
    microseconds: dict[str, list[float]]
    bytes: dict[str, float]

    def best(self, case: str) -> float:
        return min(self.microseconds[case])

    def ratio(self, case: str) -> float:
        bare = self.microseconds["bare view"]
        return statistics.median(a / b for a, b in zip(self.microseconds[case], bare, strict=True))


@dataclass(frozen=True)
class Measured:
    requests: int
    hot: float
    """The share of completions that left the indexes alone."""
    live: dict[str, float]
    """Bytes for each row that real requests have left, by part."""
    sizes: list[Figures]


def measure(*, quick: bool) -> Measured:
    requests, rounds, each = (1_000, 3, 10) if quick else (10_000, 15, 30)
    sizes = (0, 10_000, 100_000, 300_000) if quick else (0, 100_000, 1_000_000, 3_000_000)
    truncate()
    hot = _share_of_hot(requests)
    live = _bytes_of_a_row(requests)
    truncate()
    measured, filled = [], 0
    for rows in sizes:
        add(filled, rows)
        filled = rows
        measured.append(_figures(rows, rounds, each))
    return Measured(requests, hot, live, measured)


def _share_of_hot(requests: int) -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_reset_single_table_counters(%s::regclass)", [TABLE])
        for _ in range(requests):
            protected(request())
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = %s", [TABLE])
        hot, updated = cursor.fetchone()
    assert updated == requests, updated
    return float(hot / updated)


def _bytes_of_a_row(rows: int) -> dict[str, float]:
    with connection.cursor() as cursor:
        found = {}
        for name, relation in PARTS.items():
            cursor.execute("SELECT pg_relation_size(%s::regclass)", [relation])
            found[name] = cursor.fetchone()[0] / rows if rows else 0.0
    return found


def _figures(rows: int, rounds: int, each: int) -> Figures:
    size = _bytes_of_a_row(rows)
    done = str(uuid4())
    sends: dict[str, Callable[[], Any]] = {
        "bare view": lambda: bare(request()),
        "first request": lambda: protected(request()),
        "replay": lambda: protected(request(done)),
    }
    microseconds: dict[str, list[float]] = {case: [] for case in sends}
    protected(request(done))
    for _ in range(rounds):
        for name, send in sends.items():
            started = time.perf_counter()
            for _ in range(each):
                send()
            microseconds[name].append((time.perf_counter() - started) / each * 1e6)
    return Figures(rows, microseconds, size)


def told(measured: Measured) -> str:
    head = ["rows", *(f"{case}, at best" for case in CASES[1:]), *(f"{name}, bytes a row" for name in PARTS)]
    live = [
        f"{measured.requests:,}, made by requests",
        "",
        "",
        *(f"{measured.live[name]:.0f}" for name in PARTS),
    ]
    rows = [
        [
            f"{one.rows:,}",
            *(f"{one.best(case):.0f} µs, ×{one.ratio(case):.2f}" for case in CASES[1:]),
            *(f"{one.bytes[name]:.0f}" if one.rows else "" for name in PARTS),
        ]
        for one in measured.sizes
    ]
    hot = f"HOT updates: {measured.hot:.1%} of the completions of {measured.requests:,} first requests."
    return f"{table(head, [live, *rows])}\n\n{hot}"


def drawn(measured: Measured) -> dict[str, str]:
    rows = [one.rows for one in measured.sizes]
    series = {case: (rows, [one.best(case) for one in measured.sizes]) for case in CASES}
    return {"growth.svg": plots.lines(series, x="keys in the table", y="µs at best", ticks=rows)}
