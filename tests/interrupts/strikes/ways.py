"""The ways to the database at hand: on PostgreSQL by messages, by Django's cursor and by its pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from django.db import connection, connections

POOL = {"min_size": 1, "max_size": 1, "timeout": 3}
"""One connection, so that the next request must get the one that was struck, or a new one in its place."""


def ways() -> dict[str, dict[str, Any]]:
    """The changed settings of each way."""
    if connection.vendor != "postgresql":
        return {connection.vendor: {}}
    if connection.Database.__name__ == "psycopg2":
        return {"psycopg2": {}}
    import psycopg

    return {
        "messages": {},
        "cursor": {"OPTIONS": {"isolation_level": psycopg.IsolationLevel.READ_COMMITTED}},
        "pool": {"OPTIONS": {"pool": POOL}, "CONN_MAX_AGE": 0},
    }


@contextmanager
def going(way: str, *, atomic_requests: bool = False) -> Iterator[None]:
    """The default connection goes this way meanwhile."""
    usual, changes = connections["default"], ways()[way]
    connections.settings["default"]["ATOMIC_REQUESTS"] = atomic_requests
    other = usual.copy()
    options = {**usual.settings_dict["OPTIONS"], **changes.get("OPTIONS", {})}
    other.settings_dict.update({**changes, "OPTIONS": options, "ATOMIC_REQUESTS": atomic_requests})
    usual.close()
    connections["default"] = other
    try:
        yield
    finally:
        reset()
        if way == "pool":
            other.close_pool()
        connections["default"] = usual
        connections.settings["default"]["ATOMIC_REQUESTS"] = False


def reset() -> None:
    """Whatever a strike has left behind, the connection is closed and can be opened again."""
    connection.in_atomic_block = connection.needs_rollback = connection.closed_in_transaction = False
    connection.atomic_blocks, connection.savepoint_ids, connection.run_on_commit = [], [], []
    connection.run_commit_hooks_on_set_autocommit_on = False
    connection.execute_wrappers.clear()
    connection._thread_sharing_lock = Lock()
    raw, connection.connection = connection.connection, None
    if raw is not None:
        lock = getattr(raw, "lock", None)
        if lock is not None and lock.locked():
            lock.release()
        raw.close()
    if connection.settings_dict["OPTIONS"].get("pool"):
        connection.close_pool()
