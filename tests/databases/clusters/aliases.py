"""Database aliases that come and go with the servers of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections


@contextmanager
def alias(name: str, settings: dict[str, Any]) -> Iterator[None]:
    """Add a database alias to the project."""
    point(name, settings)
    try:
        yield
    finally:
        connections[name].close()
        del connections[name], connections.settings[name]


def point(name: str, settings: dict[str, Any]) -> None:
    """Let an alias lead to this server. This thread's connection to another server ends."""
    if name in connections:
        connections[name].close()
        del connections[name]
    connections.settings[name] = {**connections.settings["default"], **settings}
