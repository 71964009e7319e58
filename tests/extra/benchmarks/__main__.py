"""The figures and plots of docs/performance.md, and figures.md: `tox run -e benchmarks-mariadb`, about 12 minutes.

With --quick a small run that only prints; --only server runs that part, and only prints, too.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from tests.extra.benchmarks import stage

stage.build()

from django import get_version
from django.db import connection

from tests.extra.benchmarks import (
    calls,
    cleanup,
    cores,
    elsewhere,
    growth,
    peers,
    requests,
    server,
    traffic,
)
from tests.extra.benchmarks.answer import answer
from tests.pages import with_part

DOCS = Path(__file__).parents[3] / "docs"
PAGE, IMAGES = DOCS / "performance.md", DOCS / "images"
ALL_FIGURES = Path(__file__).with_name("figures.md")
MODULES = requests, peers, server, cores, growth, cleanup, traffic, elsewhere
PARTS = {part.__name__.rpartition(".")[2]: part for part in MODULES}


def conditions() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
    return (
        f"PostgreSQL {version} with its default settings and fsync. Django {get_version()} and Python "
        f"{platform.python_version()}. Client, server and database share {os.cpu_count()} cores of {processor()}. The "
        f"machine's load before the run was {os.getloadavg()[0]:.1f}."
    )


def processor() -> str:
    """Its name, as Linux tells it."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")]
    return f"{names[0] if names else 'an unnamed processor'} ({platform.machine()})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller tables, and print only")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="only this part, and print only; may be repeated"
    )
    options = parser.parse_args()
    all_figures, images, found = [conditions(), calls.told()], {}, {}
    for name in options.only or PARTS:
        part = PARTS[name]
        print(name, "…", file=sys.stderr, end=" ", flush=True)
        started = time.monotonic()
        found[name] = measured = part.measure(quick=options.quick)
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        images |= part.drawn(measured)
        all_figures += [f"### {part.TITLE}", part.told(measured)]
    print("\n\n".join(all_figures))
    if {"requests", "cleanup"} <= found.keys():
        print(first := answer(found["requests"], found["cleanup"]))
    if not (options.quick or options.only):
        put(PAGE, "answer", first)
        put(PAGE, "conditions", all_figures[0])
        put(ALL_FIGURES, "figures", "\n\n".join(all_figures))
        IMAGES.mkdir(exist_ok=True)
        for file, image in images.items():
            (IMAGES / file).write_text(image)


def put(page: Path, name: str, text: str) -> None:
    page.write_text(with_part(page.read_text(), name, text))


if __name__ == "__main__":
    main()
