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

from django.db import connection, connections, models, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory

from django_idempotency import get_operation, idempotent, run_once
from tests.shopapp.models import Order
from tests.wire import tapped

BODY = json.dumps({"item": "tea", "quantity": 3})
FACTORY = RequestFactory()
ROUNDS, EACH = 15, 30


class HandMadeKey(models.Model):
    """What a project would write itself."""

    key = models.CharField(max_length=255, unique=True)
    status = models.IntegerField(null=True)
    body = models.JSONField(null=True)

    class Meta:
        app_label = "benchmarks"

    def __str__(self) -> str:
        return self.key


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


def create(request: HttpRequest) -> HttpResponse:
    data = json.loads(request.body)
    order = Order.objects.create(reference=data["item"], amount=data["quantity"])
    return JsonResponse({"id": order.pk}, status=201)


def create_in_steps(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    data = json.loads(request.body)
    operation.call("charge", dict, id="ch_1")
    order = operation.write("order", Order.objects.create, reference=data["item"], amount=data["quantity"])
    return JsonResponse({"id": order.pk}, status=201)


def by_hand(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        row, created = HandMadeKey.objects.get_or_create(key=request.headers["Idempotency-Key"])
        if not created:
            return JsonResponse(row.body, status=row.status)
        response = create(request)
        row.status, row.body = response.status_code, json.loads(response.content)
        row.save()
        return response


BARE = transaction.atomic(create)
PROTECTED = idempotent(operation="create")(create)
LEASED = idempotent(operation="leased", lease=60)(create_in_steps)


def job() -> int:
    return int(Order.objects.create(reference="tea", amount=3).pk)


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
        "bare view": answers(BARE, 201),
        "first request": answers(PROTECTED, 201),
        "replay": answers(PROTECTED, 201, done),
        "mismatch": answers(PROTECTED, 422, done, json.dumps({"item": "coffee", "quantity": 1})),
        "conflict": answers(PROTECTED, 409, busy),
        "leased: a call and a write": answers(LEASED, 201),
        "run_once": lambda: run_once(job, scope="bench", key=str(uuid4())),
        "by hand (get_or_create, save)": answers(by_hand, 201),
        "by hand, replay": answers(by_hand, 201, done),
    }


def measure(delay: float | None) -> list[Figures]:
    """delay: seconds that each round trip takes longer; None: on the socket itself."""
    done, busy = str(uuid4()), str(uuid4())
    PROTECTED(request(done))
    by_hand(request(done))
    READY.clear()
    DONE.clear()
    with running(busy), nullcontext() if delay is None else tapped(delay):
        sends = cases(done, busy)
        figures = {name: Figures(name) for name in sends}
        for name, send in sends.items():
            _count(figures[name], send)
        for _ in range(ROUNDS):  # interleaved, so that a busy moment of the machine meets all
            for name, send in sends.items():
                _time(figures[name], send)
    return list(figures.values())


def _time(figures: Figures, send: Callable[[], Any]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(EACH):
        send()
    figures.cpu.append((time.process_time() - cpu) / EACH * 1e6)
    figures.microseconds.append((time.perf_counter() - wall) / EACH * 1e6)


def _count(figures: Figures, send: Callable[[], Any]) -> None:
    """Round trips through a tap, and bytes of write-ahead log."""
    with tapped() as tap:
        send()
        tap.take()
        for _ in range(EACH):
            send()
        figures.round_trips = len(tap.take()) / EACH
    before = _wal()
    for _ in range(EACH):
        send()
    figures.wal = (_wal() - before) / EACH


def _wal() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return int(cursor.fetchone()[0])
