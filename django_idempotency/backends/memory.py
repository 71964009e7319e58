"""Keys in the memory of one process, for tests and for `runserver`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from threading import RLock

from django.conf import settings
from django.core.checks import CheckMessage, Warning

from ..limits import alone
from . import KeyValueBackend

__all__ = ["MemoryBackend"]


CROWDED = 1000
"""Expired keys are dropped once there are this many keys, and again whenever the number of keys has doubled."""


class MemoryBackend(KeyValueBackend):
    """Stores keys only in this process; they are lost when it ends, and other processes don't see them."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._values: dict[str, tuple[bytes, float]] = {}
        self._crowded = CROWDED

    def swap(self, name: str, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        return alone(self._lock, partial(self._swap, name, old, new, seconds))

    def _swap(self, name: str, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        now = time.monotonic()
        current, expires = self._values.get(name, (None, now))
        if expires <= now:
            current = None
        if current == old and new is not None:
            if len(self._values) >= self._crowded:
                self._values = {each: value for each, value in self._values.items() if value[1] > now}
                self._crowded = max(CROWDED, 2 * len(self._values))
            self._values[name] = new, now + seconds
        elif current == old:
            self._values.pop(name, None)
        return current

    def clear(self) -> None:
        self._values = {}

    def check(self) -> Iterator[CheckMessage]:
        if not settings.DEBUG:
            yield Warning(
                "Keys in the memory of a process are lost with it, and invisible to other processes, where duplicates "
                "run.",
                hint="Use RedisBackend or DynamoDBBackend in production.",
                id="django_idempotency.W012",
            )
