"""Commands that end between two keys or batches when a signal arrives."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Event

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop(Event):
    """An event that a signal handler can set while the interrupted code waits for it.

    `Event.set()` takes a lock. If the signal arrives while `Event.wait()` of the same thread holds the lock, the
    process hangs for ever. A `SimpleQueue` allows `put()` at any moment. The event is set while the queue has an item.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return not self._told.empty()

    def set(self) -> None:
        self._told.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._told.get(timeout=timeout)
        except Empty:
            return False
        self._told.put(None)  # it stays set
        return True


@contextmanager
def stoppable(stop: Event, signals: Iterable[signal.Signals]) -> Iterator[list[int]]:
    """Collect these signals, so that what is running is finished before the process ends."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        received.append(number)
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
