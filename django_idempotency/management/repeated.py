"""The values of an option that may be repeated."""

from __future__ import annotations

from typing import Any


def several(given: Any) -> Any:
    """The values as a list; None is not given. `call_command(…, key="abc")` gives the value itself."""
    return [given] if isinstance(given, str | int) else given
