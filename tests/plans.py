"""How PostgreSQL reads the tables: for tests that no query reads a whole one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.db import connection


def empty_tables() -> None:
    """New files for the tables, until the test's transaction is rolled back.

    The old files still have the rows and index entries that earlier tests have rolled back. A plan would count them.
    """
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_idempotency_idempotencystep, django_idempotency_idempotencykey")


def make_many(count: int) -> int:
    """Completed keys of the last 40 hours, a finished call each, in empty tables. The primary key of the last one."""
    empty_tables()
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH keys AS (INSERT INTO django_idempotency_idempotencykey "
            "(key_hash, scope_hash, scope, operation, key, status, status_code, attempt, created_at, updated_at, "
            "expires_at) "
            "SELECT n, n, 's', 'o', 'k' || n, 'completed', 201, 1, now() - (%s - n) * interval '40 hours' / %s, now(), "
            "now() FROM generate_series(1, %s) AS n RETURNING id) "
            "INSERT INTO django_idempotency_idempotencystep (key_id, name, kind, attempt, started_at, finished_at) "
            "SELECT id, 'charge', 'call', 1, now(), now() FROM keys RETURNING key_id",
            [count] * 3,
        )
        return int(cursor.fetchall()[-1][0])


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def planned(sql: str) -> tuple[set[str], int]:
    """How the tables are read, and the most rows that one node of the plan has read."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + sql.replace("%", "%%"), [])
        answer = cursor.fetchone()[0]
    nodes = list(_nodes((json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]))
    return (
        {node["Node Type"] for node in nodes if "Scan" in node["Node Type"]},
        max((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in nodes),
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
