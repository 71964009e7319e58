"""What one request costs, beside the bare view in the same rounds."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_idempotency import idempotent, run_once
from tests.extra.benchmarks import plots
from tests.extra.benchmarks.floor import floor
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.views import bare, by_hand, job, leased, protected
from tests.tap import tapped

BODY = json.dumps({"item": "tea", "quantity": 3})
FACTORY = RequestFactory()
DELAY = 0.0005
"""Seconds that a round trip takes longer: the database is on another machine."""
TITLE = "Requests"
FLOOR, FLOOR_REPLAY = "the floor: first request, hard-coded", "the floor: replay, hard-coded"
"""See `floor.py`."""


@dataclass
class Figures:
    """Of one case: medians over the rounds; the ratios are to the bare view in the same round."""

    name: str
    microseconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    round_trips: float = 0
    wal: float = 0

    def ratio(self, bare: Figures) -> float:
        return statistics.median(a / b for a, b in zip(self.microseconds, bare.microseconds, strict=True))

    def cpu_ratio(self, bare: Figures) -> float:
        return statistics.median(a / b for a, b in zip(self.cpu, bare.cpu, strict=True))


def request(key: str | None = None) -> HttpRequest:
    headers = {"Idempotency-Key": key or str(uuid4())}
    return FACTORY.post("/orders/", BODY, content_type="application/json", headers=headers)


READY, DONE = threading.Event(), threading.Event()


@idempotent(operation="create")
def hanging(request: HttpRequest) -> HttpResponse:
    READY.set()
    DONE.wait()
    return HttpResponse(status=503)


@contextmanager
def running(key: str) -> Iterator[None]:
    """Another connection is in the middle of this key."""

    def hang() -> None:
        hanging(request(key))
        connections.close_all()

    READY.clear()
    DONE.clear()
    thread = threading.Thread(target=hang)
    thread.start()
    READY.wait()
    try:
        yield
    finally:
        DONE.set()
        thread.join()


def cases(done: str, busy: str) -> dict[str, Callable[[], Any]]:
    """Name and one request; each answers as it should, or the figures mean nothing."""

    def answers(view: Any, status: int, key: str | None = None, body: str = BODY) -> Callable[[], Any]:
        def send() -> None:
            headers = {"Idempotency-Key": key or str(uuid4())}
            sent = FACTORY.post("/orders/", body, content_type="application/json", headers=headers)
            response = view(sent)
            assert response.status_code == status, response

        return send

    return {
        "bare view": answers(bare, 201),
        "first request": answers(protected, 201),
        FLOOR: answers(floor, 201),
        "replay": answers(protected, 201, done),
        FLOOR_REPLAY: answers(floor, 201, done),
        "mismatch": answers(protected, 422, done, json.dumps({"item": "coffee", "quantity": 1})),
        "conflict": answers(protected, 409, busy),
        "leased: a call and a write": answers(leased, 201),
        "run_once": lambda: run_once(job, scope="bench", key=str(uuid4())),
        "by hand (get_or_create, save)": answers(by_hand, 201),
        "by hand, replay": answers(by_hand, 201, done),
    }


@dataclass(frozen=True)
class Measured:
    near: list[Figures]
    far: list[Figures]


def measure(*, quick: bool) -> Measured:
    rounds, each = (3, 10) if quick else (15, 30)
    return Measured(_measure(None, rounds, each), _measure(DELAY, rounds, each))


def told(measured: Measured) -> str:
    near, far = measured.near, measured.far
    rows = [
        [
            one.name,
            f"{one.round_trips:.0f}",
            f"{min(one.microseconds):.0f} µs",
            f"×{one.ratio(near[0]):.2f}",
            f"×{other.ratio(far[0]):.2f}",
            f"×{one.cpu_ratio(near[0]):.2f}",
            f"{one.wal:.0f}",
        ]
        for one, other in zip(near, far, strict=True)
    ]
    head = ["", "round trips", "at best", "× local socket", "× 0.5 ms away", "× CPU of the worker", "WAL bytes"]
    return table(head, rows)


def drawn(measured: Measured) -> dict[str, str]:
    places = {"local socket": measured.near, "0.5 ms away": measured.far}
    series = {place: [one.ratio(figures[0]) for one in figures] for place, figures in places.items()}
    axis = "times the bare view"
    return {"requests.svg": plots.bars(series, [one.name for one in measured.near], axis=axis)}


def _measure(delay: float | None, rounds: int, each: int) -> list[Figures]:
    """delay: seconds that each round trip takes longer; None: on the socket itself."""
    done, busy = str(uuid4()), str(uuid4())
    protected(request(done))
    by_hand(request(done))
    floor(request(done))
    with running(busy), nullcontext() if delay is None else tapped(delay):
        sends = cases(done, busy)
        figures = {name: Figures(name) for name in sends}
        for name, send in sends.items():
            _count(figures[name], send, each)
        for _ in range(rounds):  # interleaved, so that a busy moment of the machine meets all
            for name, send in sends.items():
                _time(figures[name], send, each)
    return list(figures.values())


def _time(figures: Figures, send: Callable[[], Any], each: int) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(each):
        send()
    figures.cpu.append((time.process_time() - cpu) / each * 1e6)
    figures.microseconds.append((time.perf_counter() - wall) / each * 1e6)


def _count(figures: Figures, send: Callable[[], Any], each: int) -> None:
    """Round trips through a tap, and bytes of write-ahead log."""
    with tapped() as tap:
        send()
        tap.take()
        for _ in range(each):
            send()
        figures.round_trips = len(tap.take()) / each
    before = _wal()
    for _ in range(each):
        send()
    figures.wal = (_wal() - before) / each


def _wal() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return int(cursor.fetchone()[0])
