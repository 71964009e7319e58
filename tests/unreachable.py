"""The default database, reached by settings that do not reach it, or only to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

UNREACHABLE: dict[str, dict[str, Any]] = {
    "postgresql": {"HOST": "/nowhere"},
    "mysql": {"HOST": "/nowhere/mysql.sock", "OPTIONS": {"unix_socket": "/nowhere/mysql.sock"}},
    "sqlite": {"NAME": "/nowhere/db.sqlite3"},
}
READ_ONLY: dict[str, dict[str, Any]] = {
    "postgresql": {"OPTIONS": {"options": "-c default_transaction_read_only=on"}},
    "mysql": {"OPTIONS": {"init_command": "SET SESSION TRANSACTION READ ONLY"}},
    "sqlite": {"OPTIONS": {"init_command": "PRAGMA query_only = ON"}},
}


@contextmanager
def reached_by(changes: dict[str, Any]) -> Iterator[Any]:
    """This thread reaches the default database with these settings."""
    usual, other = connections["default"], connections["default"].copy()
    options = {**usual.settings_dict["OPTIONS"], **changes.get("OPTIONS", {})}
    other.settings_dict.update({**changes, "OPTIONS": options})
    connections["default"] = other
    try:
        yield other
    finally:
        BaseDatabaseWrapper.close(other)  # SQLite's own keeps a database in memory open
        connections["default"] = usual
