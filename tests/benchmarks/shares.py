"""Where the time of a request goes: Python around the view, the view's own, and the messages to the database."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from django_idempotency import idempotent
from tests.benchmarks.page import table
from tests.benchmarks.requests import request
from tests.benchmarks.views import create

TITLE = "Where the time goes"
PARTS = AROUND, VIEW, MESSAGES = "Python around the view", "the view's Python", "messages to the database"
Shares = dict[str, float]
"""Microseconds by part."""


class Laps:
    """A stopwatch that runs for one part at a time. A part that begins inside another one interrupts that one."""

    def __init__(self) -> None:
        self._taken = dict.fromkeys(PARTS, 0.0)
        self._running = [AROUND]
        self._since = time.perf_counter()

    def take(self) -> Shares:
        """What the parts took since the last time."""
        self._lap()
        taken, self._taken = self._taken, dict.fromkeys(PARTS, 0.0)
        return taken

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._lap()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._lap()
                self._running.pop()

        return run

    def _lap(self) -> None:
        now = time.perf_counter()
        self._taken[self._running[-1]] += (now - self._since) * 1e6
        self._since = now


def measure(*, quick: bool) -> dict[str, list[Shares]]:
    """Of each request of the three kinds, in turn."""
    laps, done = Laps(), str(uuid4())
    view = laps.timed(VIEW, create)
    bare, protected = transaction.atomic(view), idempotent(operation="create")(view)
    kinds = {"bare view": (bare, None), "first request": (protected, None), "replay": (protected, done)}
    found: dict[str, list[Shares]] = {kind: [] for kind in kinds}
    protected(request(done))
    with _messages_timed(laps):
        for _ in range(100 if quick else 1000):
            for kind, (handler, key) in kinds.items():
                sent = request(key)
                laps.take()
                assert handler(sent).status_code == 201
                found[kind].append(laps.take())
    return found


def told(measured: dict[str, list[Shares]]) -> str:
    rows = [
        [kind, *(f"{statistics.median(one[part] for one in shares):.0f} µs" for part in PARTS)]
        for kind, shares in measured.items()
    ]
    return table(["", *PARTS], rows)


def drawn(measured: dict[str, list[Shares]]) -> dict[str, str]:
    return {}


@contextmanager
def _messages_timed(laps: Laps) -> Iterator[None]:
    """Django's calls of the driver. The driver's own Python is in them."""
    kind = type(connections["default"])
    with (
        patch.object(CursorWrapper, "execute", laps.timed(MESSAGES, CursorWrapper.execute)),
        patch.object(kind, "_commit", laps.timed(MESSAGES, kind._commit)),
    ):
        yield
