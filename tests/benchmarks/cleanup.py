"""How fast expired keys go, in a table that is mostly expired."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

from django.db import connection, connections

from django_idempotency.cleanup import cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey
from tests.benchmarks.tables import table

TITLE = "Cleanup"


@dataclass
class Figures:
    name: str
    rows: int
    rows_per_second: float
    worst_batch: float
    grown: float
    """Megabytes of memory that the process has grown by."""


def truncate() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_idempotency_idempotencykey, django_idempotency_idempotencystep")


def add(start: int, stop: int, expired: int = 0) -> None:
    """Rows as a small response leaves them, the oldest first, as they are made; the first ones have expired."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO django_idempotency_idempotencykey (
                key_hash, scope_hash, scope, operation, key, fingerprint, status, attempt,
                created_at, completed_at, expires_at, status_code, headers, body
            )
            SELECT hashint8extended(n, 1), hashint8extended(n, 2), 'user:auth.User:' || n %% 1000, 'POST orders/',
                gen_random_uuid()::text, sha256(n::text::bytea), 'completed', 1,
                now(), now(),
                now() + (n - %s) * interval '1 ms' + CASE WHEN n <= %s THEN interval '0' ELSE interval '1 day' END,
                201, '[["Content-Type", "application/json"]]', '{"id": 1, "amount": 1000, "currency": "EUR"}'
            FROM generate_series(%s, %s) AS n
            """,
            [expired, expired, start + 1, stop],
        )
        cursor.execute("VACUUM ANALYZE django_idempotency_idempotencykey")
        cursor.execute("CHECKPOINT")  # now, not while something is measured


def fill(expired: int, living: int) -> None:
    truncate()
    add(0, expired + living, expired)


def _figures(name: str, cleaners: int = 1) -> Figures:
    batches: list[float] = []
    rows: list[int] = []
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def clean() -> None:
        last = time.perf_counter()

        def note(deleted: int) -> None:
            nonlocal last
            now = time.perf_counter()
            batches.append(now - last)
            last = now

        rows.append(cleanup_idempotency_keys(progress=note).deleted)
        connections.close_all()

    threads = [Thread(target=clean) for _ in range(cleaners)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    return Figures(name, sum(rows), sum(rows) / seconds, max(batches), grown)


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


def measure(*, quick: bool) -> list[Figures]:
    expired, living = (150_000, 30_000) if quick else (2_500_000, 500_000)
    found = []
    fill(expired, living)
    found.append(_figures("alone"))
    fill(expired, living)
    with _old_snapshot():
        found.append(_figures("with an old snapshot open"))
    fill(expired, living)
    found.append(_figures("two at once", cleaners=2))
    assert IdempotencyKey.objects.count() == living
    return found


def told(measured: list[Figures]) -> str:
    rows = [
        [one.name, f"{one.rows_per_second:,.0f}", f"{one.worst_batch * 1000:.0f} ms", f"{one.grown:.0f} MB"]
        for one in measured
    ]
    return table([f"{measured[0].rows:,} expired keys", "rows/s", "worst batch", "memory grown"], rows)


def drawn(measured: list[Figures]) -> dict[str, str]:
    return {}
