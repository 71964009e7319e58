"""What cleanup does to the live traffic beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from django.db import connections

from django_idempotency.maintenance.cleanup import Cleanup, cleanup_idempotency_keys
from tests.extra.benchmarks.filling import fill
from tests.extra.benchmarks.load import Load, result
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.server import serving

TITLE = "Live traffic beside a cleanup"
CLIENTS, INTERVAL = 8, 0.08
"""A hundred first requests in a second: well below what the server can do, as in a project that is well."""
PAUSE = 0.1
CASES = {"no cleanup": None, f"cleanup with `--pause {PAUSE}`": PAUSE, "cleanup without a pause": 0}


@dataclass
class Figures:
    """Of one case: the seconds that each request took, in each round; keys deleted in all, and in how many seconds."""

    rounds: list[list[float]] = field(default_factory=list)
    deleted: int = 0
    seconds: float = 0

    def milliseconds(self, percent: int) -> float:
        return _percentile([one for found in self.rounds for one in found], percent) * 1000

    def ratio(self, quiet: Figures) -> float:
        """Of the p99 to that without a cleanup in the same round: the median, so that one bad moment is one round's."""
        pairs = zip(self.rounds, quiet.rounds, strict=True)
        return statistics.median(_percentile(a, 99) / _percentile(b, 99) for a, b in pairs)


Measured = dict[str, Figures]


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def measure(*, quick: bool) -> Measured:
    rounds, seconds, expired = (1, 1, 900_000) if quick else (3, 3, 2_600_000)
    measured = {name: Figures() for name in CASES}
    with serving() as port:
        for _ in range(rounds):
            fill(expired, living=100_000)  # enough for a cleaner that does not rest
            for name, pause in CASES.items():
                with _cleaning(pause) as cleaned:
                    elapsed, taken = result(Load(port, CLIENTS, seconds, interval=INTERVAL).start())
                measured[name].rounds.append(taken)
                measured[name].seconds += elapsed
                measured[name].deleted += sum(one.deleted for one in cleaned)
                assert not any(one.complete for one in cleaned), "the cleanup ended before the traffic"
    return measured


@contextmanager
def _cleaning(pause: float | None) -> Iterator[list[Cleanup]]:
    """A cleanup meanwhile; gives what it did, afterwards. None: no cleanup."""
    done: list[Cleanup] = []
    stop = Event()

    def clean(seconds: float) -> Cleanup:
        try:
            return cleanup_idempotency_keys(pause=seconds, stop=stop)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        cleaner = None if pause is None else pool.submit(clean, pause)
        try:
            yield done
        finally:
            stop.set()
        if cleaner is not None:
            done.append(cleaner.result())


def told(measured: Measured) -> str:
    quiet = measured["no cleanup"]
    rows = [
        [
            name,
            f"{one.milliseconds(50):.1f} ms",
            f"{one.milliseconds(99):.1f} ms",
            f"×{one.ratio(quiet):.2f}",
            f"{one.deleted / one.seconds:,.0f}",
        ]
        for name, one in measured.items()
    ]
    return table(["", "p50", "p99", "× p99 without", "keys deleted/s"], rows)


def drawn(measured: Measured) -> dict[str, str]:
    return {}
