"""What each statement of a first request costs the database, without driver and Django: sent by libpq."""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

from django.db import connection

from django_idempotency.models import IdempotencyKey
from tests.benchmarks.page import table
from tests.benchmarks.requests import request
from tests.benchmarks.views import protected
from tests.tap import tapped

TITLE = "Statements"
TIMES = 500
ROW_ID = re.compile(r"(?<=::bigint, )\d+(?=::bigint, 1::integer)")
"""In the call of `idempotency_complete_1`, the third argument, before the attempt."""

Measured = dict[str, list[float]]


def measure(*, quick: bool) -> Measured:
    """Seconds of each, in transactions that are rolled back, so that one key can be claimed again and again."""
    with tapped() as tap:
        protected(request())
        tap.take()
        protected(request())
        claim, insert, result = tap.take()
    IdempotencyKey.objects.all().delete()
    claim, result = claim.removeprefix("BEGIN; "), result.removesuffix("; COMMIT")
    taken: Measured = {name: [] for name in ("BEGIN", "the claim", "the view's INSERT", "the result")}
    connection.ensure_connection()
    raw: Any = connection.connection
    with raw.lock:
        for _ in range(TIMES // 10 if quick else TIMES):
            _timed(raw.pgconn, taken["BEGIN"], "BEGIN")
            row_id = _timed(raw.pgconn, taken["the claim"], claim).get_value(0, 1).decode()
            _timed(raw.pgconn, taken["the view's INSERT"], insert)
            _timed(raw.pgconn, taken["the result"], ROW_ID.sub(row_id, result, count=1))
            _timed(raw.pgconn, [], "ROLLBACK")
    return taken


def told(measured: Measured) -> str:
    rows = [
        [name, f"{statistics.median(seconds) * 1e6:.0f} µs", f"{min(seconds) * 1e6:.0f} µs"]
        for name, seconds in measured.items()
    ]
    return table(["", "median", "at best"], rows)


def drawn(measured: Measured) -> dict[str, str]:
    return {}


def _timed(pgconn: Any, taken: list[float], text: str) -> Any:
    encoded = text.encode()
    started = time.perf_counter()
    result = pgconn.exec_(encoded)
    taken.append(time.perf_counter() - started)
    assert not result.error_message, result.error_message
    return result
