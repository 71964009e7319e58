"""How long the admin's pages take over millions of keys: `python -m tests.benchmarks.admin [rows]`, a few minutes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.benchmarks import stage

if __name__ == "__main__":
    stage.build()

from django import get_version
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_idempotency.models import IdempotencyKey

TIMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """queries: those that read the package's tables. first, best: seconds, of the whole page."""

    name: str
    queries: int
    first: float
    best: float


def fill(rows: int) -> None:
    """Two days of keys, the oldest first; one of 1,000 failed, a few of them in doubt, a few in flight or stuck."""
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE django_idempotency_idempotencykey, django_idempotency_idempotencystep RESTART IDENTITY"
        )
        cursor.execute(
            """
            INSERT INTO django_idempotency_idempotencykey (
                key_hash, scope_hash, scope, operation, key, fingerprint, status, attempt, locked_until,
                created_at, completed_at, expires_at, status_code, headers, body
            )
            SELECT hashint8extended(n, 1), hashint8extended(n, 2), 'user:auth.User:' || n %% 1000, 'POST orders/',
                'key-' || n, sha256(n::text::bytea),
                CASE WHEN n %% 100000 < 4 THEN 'in_progress' WHEN n %% 1000 = 4 THEN 'failed' ELSE 'completed' END, 1,
                CASE WHEN n %% 100000 < 2 THEN now() - interval '1 hour'
                    WHEN n %% 100000 < 4 THEN now() + interval '1 day' END,
                now() - (%s - n) * interval '2 days' / %s, now(), now() + interval '1 day',
                201, '[["Content-Type", "application/json"]]', '{"id": 1, "amount": 1000, "currency": "EUR"}'
            FROM generate_series(1, %s) AS n ORDER BY n
            """,
            [rows, rows, rows],
        )
        cursor.execute(
            "INSERT INTO django_idempotency_idempotencystep (key_id, name, kind, attempt, started_at, finished_at) "
            "SELECT id, 'charge', 'call', 1, now(), CASE WHEN id %% 20000 <> 4 THEN now() END "
            "FROM django_idempotency_idempotencykey WHERE status <> 'completed'",
            [],
        )
        cursor.execute("VACUUM ANALYZE")


def measure() -> Iterator[Figures]:
    client = Client()
    client.force_login(User.objects.create_superuser("bench"))
    changelist = reverse("admin:django_idempotency_idempotencykey_changelist")
    middle = IdempotencyKey.objects.get(key=f"key-{IdempotencyKey.objects.latest('pk').pk // 2}")
    pages = {
        "list with the overview": changelist,
        "list, last page": f"{changelist}?p=20",
        "search for a key": f"{changelist}?q={middle.key}",
        "filter: failed": f"{changelist}?state=failed",
        "filter: response 4xx (none)": f"{changelist}?response=4",
        "filter: stuck": f"{changelist}?state=stuck",
        "filter: in doubt": f"{changelist}?state=in_doubt",
        "page of a key": reverse("admin:django_idempotency_idempotencykey_change", args=[middle.pk]),
    }
    for name, address in pages.items():
        seconds = [_seconds(client, address) for _ in range(TIMES)]
        with CaptureQueriesContext(connection) as queries:
            client.get(address)
        asked = [query for query in queries if "django_idempotency_idempotency" in query["sql"]]
        yield Figures(name=name, queries=len(asked), first=seconds[0], best=min(seconds))


def _seconds(client: Client, address: str) -> float:
    started = time.perf_counter()
    assert client.get(address).status_code == 200
    return time.perf_counter() - started


def main() -> None:
    rows = int(sys.argv[1]) if sys.argv[1:] else 5_000_000
    fill(rows)
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
    print(f"PostgreSQL {version}, Django {get_version()}, load of the machine: {os.getloadavg()[0]:.1f}\n")
    print(f"| {rows:,} keys | queries | first | best of {TIMES} |\n|---|---|---|---|")
    for one in measure():
        print(f"| {one.name} | {one.queries} | {one.first * 1000:.0f} ms | {one.best * 1000:.0f} ms |")


if __name__ == "__main__":
    main()
