"""The figures of "Size" in docs/performance.md: `python -m tests.extra.benchmarks.sizing`; --quick: a tenth."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from uuid import uuid4

from tests.extra.benchmarks import stage

stage.build()

from django.db import connection, transaction
from django.http import HttpResponse

from django_idempotency import idempotent
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.protocol.outcomes import Claimed, ClaimRequest, Snapshot
from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance.cleanup import cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey
from tests.extra.benchmarks.filling import fill
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.requests import request

TABLE = IdempotencyKey._meta.db_table
RECIPE = Path(__file__).parents[3] / "docs" / "partitions.sql"
STORE = store_for("default")
ORDER = {"id": "9f0c4a52-1d7e-4b51-8f5e-2c1a7b6d9e03", "amount": "1999.00", "currency": "EUR", "status": "accepted"}
RESPONSES = {"200 bytes": (200, 0), "2 kB": (2000, 0), "2 kB that does not compress": (1200, 800)}
"""Bytes of JSON, and of something in it that looks random, such as a token."""


def query(sql: str, *params: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else None


def body(plain: int, random: int = 0) -> bytes:
    """As an order with items is: some of it repeats, some does not."""
    items: list[dict[str, Any]] = [{**ORDER, "token": token_urlsafe(random)[:random]}]
    while len(json.dumps(items)) < plain + random:
        items.append({"sku": uuid4().hex[:12], "quantity": 3, "price": "12.50"})
    return json.dumps(items).encode()[: plain + random]


def view_of(*size: int) -> Callable[[Any], HttpResponse]:
    """It writes nothing: what is measured is the key's."""
    return idempotent(operation="POST orders/", scope=lambda request: "user:auth.User:123456")(
        lambda request: HttpResponse(body(*size), content_type="application/json", status=201)
    )


def send(size: tuple[int, int], times: int) -> None:
    view = view_of(*size)
    for _ in range(times):
        assert view(request()).status_code == 201


# --- bytes


def sizes(times: int) -> str:
    columns: dict[str, dict[str, str]] = {}
    query("SET synchronous_commit = off")
    for name, size in RESPONSES.items():
        query(f"TRUNCATE {TABLE}")
        send(size, times)
        query(f"VACUUM {TABLE}")
        parts = {"table": query(f"SELECT pg_relation_size('{TABLE}')")[0][0]}
        parts["TOAST"] = query(
            f"SELECT pg_total_relation_size(reltoastrelid) FROM pg_class WHERE oid = '{TABLE}'::regclass"
        )[0][0]
        parts |= dict(
            query(
                "SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) FROM pg_index "
                f"WHERE indrelid = '{TABLE}'::regclass ORDER BY 2 DESC"
            )
        )
        parts["all"] = sum(parts.values())
        columns[name] = {part: f"{value / times:.0f}" for part, value in parts.items()}
        query("SELECT pg_stat_force_next_flush()")
        hot, updates = query(f"SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = '{TABLE}'")[0]
        query("SELECT pg_stat_reset()")
        columns[name]["share of HOT updates"] = f"{hot / updates:.0%}"
    query("SET synchronous_commit = on")
    rows = [[part, *(column[part] for column in columns.values())] for part in columns["2 kB"]]
    return table([f"bytes per key, {times:,} requests", *columns], rows)


# --- WAL


@contextmanager
def wal(into: dict[str, float], times: int) -> Iterator[None]:
    """Bytes of each kind per request."""
    start = query("SELECT pg_current_wal_insert_lsn()")[0][0]
    yield
    query("SELECT pg_switch_wal()")
    end = query("SELECT pg_current_wal_lsn()")[0][0]
    folder, tools = query("SELECT current_setting('data_directory'), setting FROM pg_config WHERE name = 'BINDIR'")[0]
    command = [f"{tools}/pg_waldump", f"--path={folder}/pg_wal", f"--start={start}", f"--end={end}", "--stats=rmgr"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for kind, records, images in re.findall(r"^(\w+) +\d+ \([^)]*\) +(\d+) \([^)]*\) +(\d+)", output, re.MULTILINE):
        group = {"Heap": "table", "Heap2": "table", "Btree": "indexes", "Transaction": "commit"}.get(kind, "other")
        into[group] = into.get(group, 0) + int(records) / times
        into["full-page images"] = into.get("full-page images", 0) + int(images) / times


def wal_of_requests(living: int, times: int) -> str:
    rows = []
    cases = [
        *((response, "", "full_page_writes = on") for response in RESPONSES),
        ("200 bytes", ", images compressed", "wal_compression = on"),
        ("200 bytes", ", no images", "full_page_writes = off"),
    ]
    for response, name, setting in cases:
        fill(0, living)
        leaves = query("SELECT relpages FROM pg_class WHERE relname = 'idempotency_key_uniq'")[0][0]
        query(f"ALTER SYSTEM SET {setting}")
        query("SELECT pg_reload_conf()")
        query("CHECKPOINT")
        kinds: dict[str, float] = {}
        with wal(kinds, times):
            send(RESPONSES[response], times)
        kinds["all"] = sum(kinds.values())
        parts = ("table", "indexes", "commit", "full-page images", "other", "all")
        rows.append([response + name, *(f"{kinds.get(part, 0):.0f}" for part in parts)])
        query(f"ALTER SYSTEM RESET {setting.split()[0]}")
        query("SELECT pg_reload_conf()")
    head = [f"{times:,} requests after a checkpoint, {leaves:,} pages of the unique index", "table", "indexes"]
    return table([*head, "commit", "full-page images", "other", "all"], rows)


# --- leased mode


def of_leased(times: int) -> str:
    """What each step adds. The figures without full-page images do not depend on the checkpoints."""
    rows = []
    for name, steps in (
        ("claim and completion", ""),
        ("with a call", "call"),
        ("with a call and a write", "call write"),
    ):
        query(f"TRUNCATE {TABLE}, django_idempotency_idempotencystep")
        query("CHECKPOINT")
        kinds: dict[str, float] = {}
        with wal(kinds, times):
            for _ in range(times):
                assert leased_view(steps)(request()).status_code == 201
        size = query(f"SELECT pg_total_relation_size('{TABLE}')")[0][0]
        of_steps = query("SELECT pg_total_relation_size('django_idempotency_idempotencystep')")[0][0]
        written = sum(kinds.values()) - kinds["full-page images"]
        rows.append([name, *(f"{value / times:.0f}" for value in (size, of_steps)), f"{written:.0f}"])
    query("SET synchronous_commit = on")
    return table([f"{times:,} leased requests of 200 bytes", "bytes a key", "bytes of its steps", "WAL"], rows)


def leased_view(steps: str) -> Callable[[Any], HttpResponse]:
    @idempotent(operation="POST pay/", scope=lambda request: "user:auth.User:123456", lease=60)
    def takes_steps(request: Any) -> HttpResponse:
        for name in steps.split():
            getattr(request.idempotency, name)(name, lambda: {"id": "ch_3MmlLrLkdIwHu7ix0snN0B15", "paid": True})
        return HttpResponse(body(200), content_type="application/json", status=201)

    return takes_steps


# --- vacuum


def vacuum(expired: int, living: int) -> str:
    fill(expired, living)
    query("CHECKPOINT")
    kinds: dict[str, float] = {}
    started = time.perf_counter()
    with wal(kinds, expired):
        deleted = cleanup_idempotency_keys().deleted
    cleaned = time.perf_counter() - started
    before = query(f"SELECT pg_total_relation_size('{TABLE}')")[0][0]
    pages: dict[str, float] = {}
    started = time.perf_counter()
    with wal(pages, expired):
        query(f"VACUUM {TABLE}")
    vacuumed = time.perf_counter() - started
    return table(
        [
            f"{deleted:,} expired of {expired + living:,}, {before / 2**20:.0f} MB",
            "seconds",
            "rows/s",
            "WAL bytes a row",
        ],
        [
            ["cleanup", f"{cleaned:.1f}", f"{deleted / cleaned:,.0f}", f"{sum(kinds.values()):.0f}"],
            ["VACUUM after it", f"{vacuumed:.1f}", f"{deleted / vacuumed:,.0f}", f"{sum(pages.values()):.0f}"],
        ],
    )


# --- partitions


def partition(into: int) -> None:
    recipe = RECIPE.read_text()
    for word, other in {"0..15": f"0..{into - 1}", "MODULUS 16": f"MODULUS {into}", "_part_": f"_{into}_part_"}.items():
        recipe = recipe.replace(word, other)
    query(recipe)


def in_flight() -> tuple[int, int]:
    """Locks that a request holds before its COMMIT, and those of them that are in the shared table."""
    identity = identify(scope="user:auth.User:1", operation="POST orders/", key=str(uuid4()))
    with transaction.atomic():
        claimed = STORE.claim(ClaimRequest(identity=identity, fingerprint=b"f" * 32, ttl=86_400))
        assert isinstance(claimed, Claimed)
        with transaction.atomic():  # the locks are counted before the COMMIT
            STORE.complete(claimed, Snapshot(status_code=201, headers=(), body=b"{}"))
        held, shared = query(
            "SELECT count(*), count(*) FILTER (WHERE NOT fastpath) FROM pg_locks WHERE pid = pg_backend_pid() "
            "AND locktype IN ('relation', 'advisory') AND relation IS DISTINCT FROM 'pg_locks'::regclass"
        )[0]
    return held, shared


def microseconds(work: Callable[[], Any], times: int = 300) -> float:
    """Of the fastest tenth: what else runs on the machine is not meant."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return statistics.quantiles(found, n=10)[0] * 1e6


def statements() -> tuple[float, float]:
    """The result by `id`, as it is, and by `id` and `key_hash`."""
    row = IdempotencyKey.objects.order_by("pk").last()
    assert row is not None
    update = f"UPDATE {TABLE} SET status = 'completed', body = body WHERE id = {row.pk} AND attempt = 1"
    with transaction.atomic():
        found = tuple(
            microseconds(lambda sql=sql: query(sql))  # type: ignore[misc]
            for sql in (update, f"{update} AND key_hash = {row.key_hash}")
        )
        transaction.set_rollback(True)
    return found  # type: ignore[return-value]


def of_requests() -> tuple[float, float]:
    view, replayed = view_of(200), request()
    view(replayed)
    return microseconds(lambda: view(request())), microseconds(lambda: view(replayed))


def partitioned(living: int) -> str:
    rows = []
    for partitions in (1, 16, 64):
        if partitions > 1:
            query(f"TRUNCATE {TABLE}")
            partition(partitions)
        fill(living // 6 * 5, living // 6)
        query(f"ANALYZE {TABLE}")
        held, shared = in_flight()
        by_id, by_both = statements()
        first, again = of_requests()
        started = time.perf_counter()
        rate = cleanup_idempotency_keys().deleted / (time.perf_counter() - started)
        rows.append(
            [
                "plain table" if partitions == 1 else f"{partitions} partitions",
                *(f"{value:.0f} µs" for value in (first, again, by_id, by_both)),
                f"{held} ({shared})",
                f"{rate:,.0f}",
            ]
        )
    head = ["", "first request", "replay", "UPDATE by `id`", "by `id` and `key_hash`", "locks (not fast path)"]
    return table([*head, "cleanup rows/s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["sizes", "wal", "leased", "vacuum", "partitions"])
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    print(f"PostgreSQL {query('SHOW server_version')[0][0]}; load of the machine before: {os.getloadavg()[0]:.1f}.")
    for name, work in {
        "sizes": lambda: sizes(50_000 // scale),
        "wal": lambda: wal_of_requests(1_000_000 // scale, 3_000 // scale),
        "leased": lambda: of_leased(20_000 // scale),
        "vacuum": lambda: vacuum(1_000_000 // scale, 1_000_000 // scale),
        "partitions": lambda: partitioned(300_000 // scale),
    }.items():
        if options.only in (None, name):
            print(f"\n{work()}", flush=True)


if __name__ == "__main__":
    main()
