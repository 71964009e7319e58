"""How fast expired keys go, in a table that is mostly expired, and what the machine can do at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection, connections, transaction

from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance.cleanup import BATCH_SIZE, cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey
from tests.extra.benchmarks import plots
from tests.extra.benchmarks.filling import fill
from tests.extra.benchmarks.page import table

TITLE = "Cleanup"
ALONE, OLD_SNAPSHOT = "alone", "with an old snapshot open"
POINTS = 40
"""Of a line in the plot."""
BARE_SQL = """
    WITH gone AS (
        DELETE FROM django_idempotency_idempotencykey WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM django_idempotency_idempotencykey
            WHERE expires_at <= (SELECT clock_timestamp()) AND expires_at >= COALESCE(%s::timestamptz, '-infinity')
            ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED
        )) RETURNING expires_at
    ) SELECT count(*), max(expires_at) FROM gone
"""
"""The least that deletes a batch and knows where the next one begins."""


@dataclass
class Figures:
    name: str
    seconds: float = 0
    batches: list[tuple[float, float, int]] = field(default_factory=list)
    """Of each: when it ended, seconds from the start; how long it took; rows."""
    grown: float = 0
    """Megabytes of memory that the process had more at most than before."""

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.batches)

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def worst(self) -> float:
        return max(taken for _, taken, _ in self.batches)


def measure(*, quick: bool) -> list[Figures]:
    expired, living = (150_000, 30_000) if quick else (1_500_000, 300_000)
    measured = []
    fill(expired, living)
    measured.append(clean(ALONE))
    fill(expired, living)
    with _old_snapshot():
        measured.append(clean(OLD_SNAPSHOT))
    fill(expired, living)
    measured.append(clean("two at once", cleaners=2))
    fill(expired, living)
    measured += _beside_bare_sql()
    assert IdempotencyKey.objects.count() == living
    assert all(one.rows == expired for one in measured[:3])
    return measured


def clean(name: str, cleaners: int = 1) -> Figures:
    """Delete what has expired, on whatever database this is."""
    figures = Figures(name)
    before = _memory()
    started = time.perf_counter()

    def run() -> None:
        last, total = started, 0

        def note(deleted: int) -> None:
            nonlocal last, total
            now = time.perf_counter()
            figures.batches.append((now - started, now - last, deleted - total))
            figures.grown = max(figures.grown, _memory() - before)
            last, total = now, deleted

        cleanup_idempotency_keys(progress=note)
        connections.close_all()

    with ThreadPoolExecutor(cleaners) as pool:
        for cleaner in [pool.submit(run) for _ in range(cleaners)]:
            cleaner.result()  # an error, such as a deadlock, ends the benchmark
    figures.seconds = time.perf_counter() - started
    return figures


def _memory() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def _old_snapshot() -> Iterator[None]:
    """A transaction elsewhere, such as a dump, that still sees what is being deleted."""
    other: Any = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM django_idempotency_idempotencykey WHERE id < 10")
    try:
        yield
    finally:
        other.rollback()
        other.close()


def _beside_bare_sql() -> list[Figures]:
    """In turn on the same table, batch by batch, so that both meet the same machine."""
    store = store_for("default")
    ours, bare = Figures("in turn with bare SQL"), Figures("bare SQL")

    def purge(bound: Any) -> tuple[int, Any]:
        with transaction.atomic(durable=True):
            return store.purge(BATCH_SIZE, bound)

    def purge_bare(bound: Any) -> tuple[int, Any]:
        with connection.cursor() as cursor:
            cursor.execute(BARE_SQL, [bound, BATCH_SIZE])
            return cursor.fetchone()

    turns: list[tuple[Figures, Callable[[Any], tuple[int, Any]]]] = [(ours, purge), (bare, purge_bare)]
    with connection.cursor() as cursor:  # the plan that ours asks for
        cursor.execute("SET enable_bitmapscan = off; SET enable_seqscan = off")
    bound, count = None, BATCH_SIZE
    while count:
        for figures, purge_batch in turns:
            started = time.perf_counter()
            count, bound = purge_batch(bound)
            taken = time.perf_counter() - started
            if count:
                figures.seconds += taken
                figures.batches.append((figures.seconds, taken, count))
        turns.reverse()
    with connection.cursor() as cursor:
        cursor.execute("RESET enable_bitmapscan; RESET enable_seqscan")
    return [ours, bare]


def told(measured: list[Figures]) -> str:
    rows = [
        [one.name, f"{one.rows:,}", f"{one.rate:,.0f}", f"{one.worst * 1000:.0f} ms", f"{one.grown:.1f} MB"]
        for one in measured
    ]
    return table(["", "keys deleted", "keys/s", "worst batch", "memory grown"], rows)


def drawn(measured: list[Figures]) -> dict[str, str]:
    series = {one.name: _rates(one) for one in measured if one.name in (ALONE, OLD_SNAPSHOT)}
    return {"cleanup.svg": plots.lines(series, x="seconds since the start", y="keys/s")}


def _rates(figures: Figures) -> tuple[list[float], list[float]]:
    """When, and how fast just then."""
    size = -(-len(figures.batches) // POINTS)
    groups = [figures.batches[start : start + size] for start in range(0, len(figures.batches), size)]
    rates = [sum(rows for _, _, rows in group) / sum(taken for _, taken, _ in group) for group in groups]
    return [group[-1][0] for group in groups], rates
