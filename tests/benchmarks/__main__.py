"""The figures of docs/performance.md: `tox run -e benchmarks`, some minutes; with --quick a small table and no file."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterable
from pathlib import Path

from tests.benchmarks import stage

stage.build()

from django import get_version
from django.db import connection

from tests.benchmarks import cleanup, requests

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
START, END = "<!-- figures -->", "<!-- end of figures -->"
DELAY = 0.0005


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [" | ".join(head), *(" | ".join(row) for row in rows)]
    lines.insert(1, " | ".join("---" for _ in lines[0].split(" | ")))
    return "\n".join(f"| {line} |" for line in lines)


def of_requests() -> str:
    near, far = requests.measure(None), requests.measure(DELAY)
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


def of_cleanup(expired: int, living: int) -> str:
    rows = [
        [one.name, f"{one.rows_per_second:,.0f}", f"{one.worst_batch * 1000:.0f} ms", f"{one.grown:.0f} MB"]
        for one in cleanup.measure(expired, living)
    ]
    return table([f"{expired:,} expired of {expired + living:,}", "rows/s", "worst batch", "memory grown"], rows)


def conditions() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
    return (
        f"PostgreSQL {version} in its default settings with fsync, Django {get_version()}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores for client and server together."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, and print only")
    quick = parser.parse_args().quick
    expired, living = (250_000, 50_000) if quick else (2_500_000, 500_000)
    figures = "\n\n".join([conditions(), "### Requests", of_requests(), "### Cleanup", of_cleanup(expired, living)])
    print(figures)
    if not quick:
        text = PAGE.read_text()
        before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
        PAGE.write_text(f"{before}\n\n{figures}\n\n{after}")


if __name__ == "__main__":
    main()
