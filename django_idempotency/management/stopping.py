"""Commands that end between two keys or batches when a signal arrives, and at once when another one follows."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event

SIGNALS = (signal.SIGTERM, signal.SIGINT)
MOMENT = 1.0
"""Seconds. Signals within it are one wish: `timeout` of GNU sends its signal to the process, and then to its group."""


@contextmanager
def stoppable(stop: Event, signals: Iterable[signal.Signals]) -> Iterator[list[int]]:
    """Collect these signals, so that what is running is finished before the process ends.

    A signal that comes a `MOMENT` later raises `SystemExit` in what is running, which may hang.
    """
    received: list[int] = []
    heeded = math.inf

    def note(number: int, frame: object) -> None:
        nonlocal heeded
        first, now = not received, time.monotonic()
        received.append(number)
        if first:
            heeded = now
            # A second signal can interrupt `set()`, which holds a lock: a second `set()` would wait for it for ever.
            stop.set()
        elif now - heeded >= MOMENT:
            heeded = now
            raise SystemExit(128 + number)

    try:
        previous = {number: signal.signal(number, note) for number in signals}
    except ValueError:
        yield received  # not the main thread: signals are the business of the program that called us
        return
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
