"""A panel of django-debug-toolbar, which the toolbar imports by its path."""

from __future__ import annotations

from typing import Any

from debug_toolbar.panels.sql import SQLPanel

from tests.operators.tracing.tools import SEEN


class Panel(SQLPanel):
    """The toolbar's own. What the panel has seen is kept for the test."""

    def record(self, **recorded: Any) -> None:
        SEEN.append(recorded["sql"])
        super().record(**recorded)
