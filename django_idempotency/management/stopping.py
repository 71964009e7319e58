"""Commands that end between two keys or batches when a signal arrives."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stoppable(stop: Event, signals: Iterable[signal.Signals]) -> Iterator[list[int]]:
    """Collect these signals, so that what is running is finished before the process ends."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        first = not received
        received.append(number)
        # A second signal can interrupt `set()`, which holds a lock: a second `set()` would wait for it for ever.
        if first:
            stop.set()

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
