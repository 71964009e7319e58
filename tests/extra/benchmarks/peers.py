"""What the other packages cost on the same view, as comparison/peers.py sets them up."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from django.db import connection

from tests.extra.benchmarks import plots
from tests.extra.benchmarks.page import table

ROOT = Path(__file__).parents[3]
COMPARISON = Path(__file__).with_name("comparison")
sys.path.append(str(COMPARISON))
from peers import PEERS

TITLE = "Beside other packages"
CASES = ("bare view", "first request", "replay")
NOT_TIMED = ("no package", "drf-idem")
"""The second runs the view for a retry, too, so there is no replay to time."""


@dataclass
class Figures:
    """Of one package: microseconds of each case in each round."""

    name: str
    microseconds: dict[str, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})

    def ratio(self, case: str) -> float:
        """To the bare view in the same process and round."""
        bare = self.microseconds["bare view"]
        return statistics.median(a / b for a, b in zip(self.microseconds[case], bare, strict=True))


@dataclass(frozen=True)
class Measured:
    django: str
    rest_framework: str
    packages: list[Figures]


def measure(*, quick: bool) -> Measured:
    rounds, each = (3, 10) if quick else (15, 30)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ExitStack() as stack:
        python = _environment(Path(folder))
        workers = {name: stack.enter_context(_running(name, python)) for name in PEERS if name not in NOT_TIMED}
        versions = {name: _answer(worker) for name, worker in workers.items()}
        packages = {name: Figures(name) for name in workers}
        for _ in range(rounds):
            for name, worker in workers.items():
                _ask(worker, each)
                for case, microseconds in _answer(worker).items():
                    packages[name].microseconds[case].append(microseconds)
    django, rest_framework = versions["django-idempotency"]
    return Measured(django, rest_framework, list(packages.values()))


def _environment(folder: Path) -> Path:
    """A Python with all of them: the same Django, the newest that they allow together."""
    python = folder / "bin" / "python"
    requirements = [peer.requirement for peer in PEERS.values() if peer.requirement]
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    subprocess.run([*install, "djangorestframework", "psycopg[binary]"], check=True)
    return python


@contextmanager
def _running(name: str, python: Path) -> Iterator[Popen[str]]:
    """A process for one package, with a database of its own."""
    database = f"benchmark_{name.replace('-', '_')}"
    _execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    settings = connection.settings_dict
    where = {name: settings[name] for name in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT")} | {"NAME": database}
    environment = {
        **os.environ,
        "PEER": name,
        "PEER_DATABASE": json.dumps(where),
        "DATABASE": database,
        "DATABASE_HOST": where["HOST"],
        "PYTHONPATH": f"{COMPARISON}:{ROOT}",
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    # -P: beside the script there are names that other packages import, such as requests.
    command = [python, "-P", Path(__file__).with_name("peer.py")]
    process = Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        _execute(f"DROP DATABASE {database} WITH (FORCE)")


def _execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _ask(worker: Popen[str], each: int) -> None:
    assert worker.stdin is not None
    print(each, file=worker.stdin, flush=True)


def _answer(worker: Popen[str]) -> Any:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    assert line, "the package's process ended: see above"
    return json.loads(line)


def told(measured: Measured) -> str:
    head = ["", *(f"{case}, {what}" for case in CASES[1:] for what in ("at best", "× bare view"))]
    rows = [
        [
            one.name,
            *(
                cell
                for case in CASES[1:]
                for cell in (f"{min(one.microseconds[case]):.0f} µs", f"×{one.ratio(case):.2f}")
            ),
        ]
        for one in measured.packages
    ]
    where = f"All on Django {measured.django}, Django REST framework {measured.rest_framework}."
    return f"{table(head, rows)}\n\n{where}"


def drawn(measured: Measured) -> dict[str, str]:
    series = {case: [one.ratio(case) for one in measured.packages] for case in CASES[1:]}
    names = [one.name for one in measured.packages]
    return {"peers.svg": plots.bars(series, names, axis="times the bare view")}
