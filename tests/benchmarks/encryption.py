"""What `ENCRYPTION_KEYS` adds to a first request and to a replay: the functions that do it, alone."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from django.test import override_settings

from django_idempotency.engine.protocol.snapshots import Snapshot
from django_idempotency.engine.stores.sealing import seal_response, unseal_response
from tests.at_rest import OLD
from tests.benchmarks.page import table

TITLE = "Encryption at rest"
SIZES = (200, 10_000)
"""Bytes of a body: a small response, and a large one."""
HEADERS = (("Content-Type", "application/json"), ("Location", "/orders/1/"))
ROW: Any = SimpleNamespace(key_hash=1, scope_hash=2)

Measured = dict[int, list[float]]


def measure(*, quick: bool) -> Measured:
    """By the size of a body: microseconds of a first request and of a replay, and bytes that the row is longer."""
    rounds = 5 if quick else 50
    return {
        size: _measured(Snapshot(status_code=201, headers=HEADERS, body=os.urandom(size)), rounds) for size in SIZES
    }


def told(measured: Measured) -> str:
    rows = [
        [f"{size:,} bytes", f"{first:.0f} µs", f"{replay:.0f} µs", f"{longer:,.0f}"]
        for size, (first, replay, longer) in measured.items()
    ]
    return table(["body", "a first request takes longer", "a replay takes longer", "bytes more in the row"], rows)


def drawn(measured: Measured) -> dict[str, str]:
    return {}


def _measured(snapshot: Snapshot, rounds: int) -> list[float]:
    plain, sealed = ({}, {"ENCRYPTION_KEYS": [OLD]})
    with override_settings(IDEMPOTENCY=plain):
        before = _costs(snapshot, rounds)
    with override_settings(IDEMPOTENCY=sealed):
        after = _costs(snapshot, rounds)
    return [b - a for a, b in zip(before, after, strict=True)]


def _costs(snapshot: Snapshot, rounds: int) -> list[float]:
    headers, body = seal_response(ROW, snapshot)
    stored: Any = SimpleNamespace(key_hash=1, scope_hash=2, headers=headers, body=body)
    return [
        _microseconds(lambda: seal_response(ROW, snapshot), rounds),
        _microseconds(lambda: unseal_response(stored), rounds),
        len(headers or "") + len(body or b""),
    ]


def _microseconds(work: Callable[[], Any], rounds: int, each: int = 200) -> float:
    """Of one call: the median of the rounds, in time of the process."""
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(each):
            work()
        taken.append((time.process_time() - started) / each * 1e6)
    return statistics.median(taken)
