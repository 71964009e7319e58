"""How many requests and faults there were, for the end of the output. pytest wants it imported by tests/conftest.py."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

LONGER = os.environ.get("INTERRUPTS", "1")
"""How many times as many strikes as usual, or `all`."""
AT = os.environ.get("INTERRUPTS_AT", "")
"""What the names of the places must contain."""
SEED = os.environ.get("INTERRUPTS_SEED", "1")


def recorded(terminalreporter: Any, name: str) -> Iterator[Any]:
    """What the tests have recorded under this name, once each."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                yield from (figures for of, figures in report.user_properties if of == name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if counted := sum((Counter(dict(figures)) for figures in recorded(terminalreporter, "counted")), Counter[str]()):
        what = ", ".join(f"{number:,} {name}" for name, number in counted.items())
        terminalreporter.write_line(f"counted: {what}")
    cases = list(recorded(terminalreporter, "interrupts"))
    if cases:
        made, places, torn = map(sum, zip(*cases, strict=True))
        terminalreporter.write_line(
            f"INTERRUPTS={LONGER} INTERRUPTS_SEED={SEED}: {made:,} strikes at {places:,} places of {len(cases)} "
            f"scenarios, {torn:,} left something torn"
        )
