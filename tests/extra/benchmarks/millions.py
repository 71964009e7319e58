"""What a table of millions of keys costs: `python -m tests.extra.benchmarks.millions [rows]`, 15 minutes for ten."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.extra.benchmarks.sizing import RECIPE, TABLE, query, view_of

# isort: split
# `sizing` has set Django up.
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_idempotency.maintenance import cleanup_idempotency_keys, forget_scope
from django_idempotency.metrics import KeyCollector
from django_idempotency.models import IdempotencyKey
from tests.extra.benchmarks.requests import request

TIMES = 10
EXPIRED = 100_000
LIST = "admin:django_idempotency_idempotencykey_changelist"
FILL = f"""
    INSERT INTO {TABLE} (
        key_hash, scope_hash, scope, operation, key, fingerprint, status, attempt, locked_until, last_error,
        created_at, updated_at, completed_at, expires_at, status_code, headers, body, resource_type, resource_id
    )
    SELECT hashint8extended(n, 1), hashint8extended(n, 2), 'user:auth.User:' || n % 100000, 'POST orders/',
        'key-' || n, sha256(n::text::bytea),
        CASE WHEN n % 100000 < 4 THEN 'in_progress' WHEN n % 1000 = 4 THEN 'failed' ELSE 'completed' END, 1,
        CASE WHEN n % 100000 < 2 THEN now() - interval '1 hour' WHEN n % 100000 < 4 THEN now() + interval '1 day' END,
        CASE WHEN n % 1000 = 4 THEN 'TimeoutError' END, now(), now(), now(),
        now() + CASE WHEN n <= {EXPIRED} THEN interval '0' ELSE interval '1 day' END, 201,
        '[["Content-Type", "application/json"]]', '{{"id": 1, "amount": 1000, "currency": "EUR"}}', 'order', n::text
    FROM generate_series(1, ROWS) AS n
"""
"""One of 1,000 failed, most of them half done and a few in doubt; a few in flight or stuck. Each names a resource."""
STEPS = """
    INSERT INTO django_idempotency_idempotencystep (
        key_id, key_hash, scope_hash, name, kind, attempt, started_at, finished_at)
    SELECT id, key_hash, scope_hash, 'charge', 'call', 1, now(), CASE WHEN id % 20000 <> 4 THEN now() END
    FROM django_idempotency_idempotencykey WHERE status <> 'completed'
"""


def fill(rows: int) -> Iterator[tuple[str, float]]:
    """Indexes come last: that is faster, and shows what a migration with one more index takes."""
    meta = IdempotencyKey._meta
    with connection.schema_editor() as editor:
        for index in meta.indexes:
            editor.remove_index(IdempotencyKey, index)
        editor.remove_constraint(IdempotencyKey, meta.constraints[0])
    query(FILL.replace("ROWS", str(rows)))
    query(STEPS)
    with connection.schema_editor() as editor:
        editor.add_constraint(IdempotencyKey, meta.constraints[0])
        for index in meta.indexes:
            yield f"migration that adds {index.name}", seconds(lambda one=index: editor.add_index(IdempotencyKey, one))
    yield "VACUUM ANALYZE", seconds(lambda: query("VACUUM ANALYZE"))
    query("CHECKPOINT")


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(rows: int) -> Iterator[tuple[str, float]]:
    """The best of some runs; what deletes or converts runs once."""
    client = Client()
    client.force_login(User.objects.create_superuser("bench"))
    view, replayed = view_of(200), request()
    view(replayed)
    middle, collector, address = rows // 2, KeyCollector(), reverse(LIST)
    key = IdempotencyKey.objects.get(key=f"key-{middle}")
    works: dict[str, Callable[[], Any]] = {"first request": lambda: view(request()), "replay": lambda: view(replayed)}
    pages = {
        "admin, index page": reverse("admin:index"),
        "admin, list": address,
        "admin, search for a key": f"{address}?q={key.key}",
        "admin, search for a resource": f"{address}?q=order {middle}",
        "admin, search for a scope": f"{address}?q={key.scope}",
        "admin, needs attention": f"{address}?state=attention",
        "admin, page of a key": reverse("admin:django_idempotency_idempotencykey_change", args=[key.pk]),
    }
    works |= {name: lambda page=page: client.get(page) for name, page in pages.items()}  # type: ignore[misc]
    works["scrape"] = lambda: list(collector.collect())
    for name, work in works.items():
        yield name, min(seconds(work) for _ in range(TIMES))
    query("SET synchronous_commit = off")
    yield "first request, synchronous_commit = off", min(seconds(works["first request"]) for _ in range(TIMES))
    query("SET synchronous_commit = on")
    print(f"Statements that would read a whole table: {whole_tables(works)}")
    yield "erasure of a caller", seconds(lambda: forget_scope(key.scope))
    yield f"cleanup of {EXPIRED:,} keys", seconds(cleanup_idempotency_keys)
    yield "VACUUM after it", seconds(lambda: query(f"VACUUM {TABLE}"))
    yield "docs/partitions.sql, which locks the table", seconds(lambda: query(RECIPE.read_text()))


def whole_tables(works: dict[str, Callable[[], Any]]) -> list[str]:
    """By their plans, so that more rows change nothing."""
    found = []
    for work in works.values():
        with CaptureQueriesContext(connection) as asked:
            work()
        for sql in {one["sql"] for one in asked if one["sql"].startswith("SELECT")}:
            plan = "".join(line for (line,) in query(f"EXPLAIN {sql}"))
            found += [sql] if f"Seq Scan on {TABLE}" in plan else []
    return found


def main() -> None:
    rows = int(sys.argv[1]) if sys.argv[1:] else 10_000_000
    print(f"PostgreSQL {query('SHOW server_version')[0][0]}, load of the machine before: {os.getloadavg()[0]:.1f}\n")
    print(f"| {rows:,} keys | seconds |\n|---|---|")
    for part in (fill(rows), measure(rows)):
        for name, found in part:
            print(f"| {name} | {found:.4f} |", flush=True)


if __name__ == "__main__":
    main()
