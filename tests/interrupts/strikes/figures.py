"""How many strikes were made, for the end of the tests' output. Imported by tests/conftest.py, as pytest wants it."""

from __future__ import annotations

import os
from typing import Any

LONGER = os.environ.get("INTERRUPTS", "1")
"""How many times as many strikes as usual, or `all`."""
AT = os.environ.get("INTERRUPTS_AT", "")
"""What the names of the places must contain."""
SEED = os.environ.get("INTERRUPTS_SEED", "1")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    cases = [
        figures
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, figures in report.user_properties
        if name == "interrupts"
    ]
    if cases:
        made, places, torn = map(sum, zip(*cases, strict=True))
        terminalreporter.write_line(
            f"INTERRUPTS={LONGER} INTERRUPTS_SEED={SEED}: {made:,} strikes at {places:,} places of {len(cases)} "
            f"scenarios, {torn:,} left something torn"
        )
