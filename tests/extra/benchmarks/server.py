"""What it costs through a real server, and with many clients at once."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tests.extra.benchmarks import plots
from tests.extra.benchmarks.load import Load, result
from tests.extra.benchmarks.page import table
from tests.extra.benchmarks.requests import running
from tests.servers import gunicorn

TITLE = "Through a server"
WORKERS = 3
CLIENTS = (1, 16, 64)
BUSY = str(uuid4())
CASES: dict[str, dict[str, Any]] = {
    "bare view": {"path": "bare"},
    "first request": {},
    "replay": {"new_keys": False},
    "mismatch": {"new_keys": False, "other_body": True, "status": 422},
    "conflict": {"new_keys": False, "key": BUSY, "status": 409},
    "leased: a call and a write": {"path": "leased"},
    "by hand (get_or_create, save)": {"path": "by-hand"},
}
DRAWN = ("bare view", "first request", "replay", "by hand (get_or_create, save)")


@dataclass
class Figures:
    """Of one case under so many clients: requests per second in each round, and the seconds that each request took."""

    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def milliseconds(self, percent: int) -> float:
        return statistics.quantiles(self.seconds, n=100)[percent - 1] * 1000

    def ratio(self, bare: Figures) -> float:
        return statistics.median(a / b for a, b in zip(self.rates, bare.rates, strict=True))


Measured = dict[str, dict[int, Figures]]


@contextmanager
def serving(workers: int = WORKERS) -> Iterator[int]:
    """The benchmarks' project on gunicorn; gives its port."""
    project = {"DJANGO_SETTINGS_MODULE": "tests.extra.benchmarks.server_settings"}
    application = "django.core.wsgi:get_wsgi_application()"
    with gunicorn("--workers", str(workers), application=application, **project) as url:
        yield urlsplit(url).port or 0


def measure(*, quick: bool) -> Measured:
    numbers, rounds, seconds = ((1, 16), 1, 0.3) if quick else (CLIENTS, 5, 1)
    measured = {name: {clients: Figures() for clients in numbers} for name in CASES}
    with serving() as port:
        for _ in range(rounds):
            for clients in numbers:
                for name, case in CASES.items():
                    with running(BUSY) if "key" in case else nullcontext():
                        elapsed, taken = result(Load(port, clients, seconds, **case).start())
                    measured[name][clients].rates.append(len(taken) / elapsed)
                    measured[name][clients].seconds += taken
    return measured


def told(measured: Measured) -> str:
    head = ["requests/s, × the bare view's (p50, p99)", *(_named(clients) for clients in measured["bare view"])]
    rows = [
        [
            name,
            *(
                f"{one.rate:.0f}, ×{one.ratio(measured['bare view'][clients]):.2f} "
                f"({one.milliseconds(50):.1f}, {one.milliseconds(99):.1f} ms)"
                for clients, one in figures.items()
            ),
        ]
        for name, figures in measured.items()
    ]
    return table(head, rows)


def _named(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} at once"


def drawn(measured: Measured) -> dict[str, str]:
    numbers = list(measured["bare view"])
    series = {name: (numbers, [one.rate for one in measured[name].values()]) for name in DRAWN}
    return {"throughput.svg": plots.lines(series, x="clients at once", y="requests/s", ticks=numbers)}
