"""Real duplicates: threads with database connections of their own that all send at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from django.db import connections

from .sending import Answer, Request, quiet

PATIENCE = 60
"""Seconds until a test that hangs fails instead: a duplicate may wait for the first one, but not for minutes."""


def refuse_without_commits(alias: str) -> None:
    """Raise RuntimeError where other threads could not see what this one commits, or could not run beside it."""
    for connection in connections.all(initialized_only=True):
        backend: Any = connection
        if backend.in_atomic_block:
            raise RuntimeError(
                f"transaction=True sends requests at once on connections of their own, and this test runs inside a "
                f"transaction of {backend.alias!r} that they cannot see into. Use django.test.TransactionTestCase, or "
                "@pytest.mark.django_db(transaction=True)."
            )
    keys: Any = connections[alias]
    if keys.vendor == "sqlite" and keys.is_in_memory_db():
        raise RuntimeError(
            f"transaction=True needs requests that really run at once, which database {alias!r} cannot do: it is an "
            'in-memory SQLite. Give it a file: DATABASES[…]["TEST"] = {"NAME": "/tmp/test.sqlite3"}.'
        )


def send_at_once(request: Request, key: str, count: int, alias: str) -> list[Answer]:
    """Send the same request `count` times at once. Closes the connections it has opened."""
    barrier = Barrier(count, timeout=PATIENCE)

    def send(client: Any) -> Answer:
        try:
            connections[alias].ensure_connection()  # before the start: connecting takes longer than the race
            barrier.wait()
            return request.send(key, client=client)
        except BaseException:
            barrier.abort()
            raise
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(send, quiet(request.client)) for _ in range(count)]
        return [future.result() for future in futures]
