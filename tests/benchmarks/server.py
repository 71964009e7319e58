"""What it costs through a real server, and with many clients at once."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.benchmarks import plots
from tests.benchmarks.load import Load, result
from tests.benchmarks.tables import table
from tests.servers import gunicorn

TITLE = "Through a server"
WORKERS = 3
CLIENTS = (1, 4, 16, 64)
CASES = {"bare view": ("bare", False), "first request": ("protected", False), "replay": ("protected", True)}


@dataclass
class Figures:
    """Of one case under so many clients: requests per second in each round, and the seconds that each request took."""

    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def milliseconds(self, percent: int) -> float:
        return statistics.quantiles(self.seconds, n=100)[percent - 1] * 1000

    def ratio(self, bare: Figures) -> float:
        return statistics.median(a / b for a, b in zip(self.rates, bare.rates, strict=True))


Measured = dict[int, dict[str, Figures]]


@contextmanager
def serving() -> Iterator[int]:
    """The benchmarks' project on gunicorn; gives its port."""
    project = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.server_settings"}
    application = "django.core.wsgi:get_wsgi_application()"
    with gunicorn("--workers", str(WORKERS), application=application, **project) as url:
        yield urlsplit(url).port or 0


def measure(*, quick: bool) -> Measured:
    rounds, seconds = (1, 0.5) if quick else (9, 1)
    measured = {clients: {name: Figures() for name in CASES} for clients in CLIENTS}
    with serving() as port:
        for _ in range(rounds):
            for clients, figures in measured.items():
                for name, (path, replay) in CASES.items():
                    elapsed, taken = result(Load(port, path, replay, clients, seconds).start())
                    figures[name].rates.append(len(taken) / elapsed)
                    figures[name].seconds += taken
    return measured


def told(measured: Measured) -> str:
    head = ["clients at once", *(f"{name}: requests/s (p50, p99)" for name in CASES)]
    rows = [
        [
            str(clients),
            *(
                f"{statistics.median(one.rates):.0f} = ×{one.ratio(figures['bare view']):.2f} "
                f"({one.milliseconds(50):.1f} ms, {one.milliseconds(99):.1f} ms)"
                for one in figures.values()
            ),
        ]
        for clients, figures in measured.items()
    ]
    return table(head, rows)


def drawn(measured: Measured) -> dict[str, str]:
    series = {
        name: (CLIENTS, [statistics.median(figures[name].rates) for figures in measured.values()]) for name in CASES
    }
    return {"throughput.svg": plots.lines(series, x="clients at once", y="requests/s", ticks=CLIENTS)}
