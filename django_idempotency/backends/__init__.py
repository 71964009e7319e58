"""Stores for the keys of views that write nothing to the project's databases.

A backend is one method: compare-and-swap with expiry. What keys mean is decided above it, in the engine, by the same
rules as for keys in the database, with the same errors and events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from django.core.checks import CheckMessage

__all__ = ["KeyValueBackend"]


class KeyValueBackend:
    """The base class of all backends. `OPTIONS` in the setting `BACKENDS` become the arguments of its constructor.

    One instance serves all threads of a process.
    """

    max_bytes: ClassVar[int | None] = None
    """The longest value that the store takes, in bytes; None: any. A longer response leaves a tombstone."""

    def swap(self, name: str, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        """Return the value stored under `name`, and in the same atomic step replace it if it is `old`.

        Args:
            name: ASCII characters without spaces, about 40 of them.
            old: what must be stored for a change. None: nothing, or only a value that has expired.
            new: what to store instead, never empty. None deletes; if `old` is None as well, the call only reads.
            seconds: when the new value expires, by the store's own clock. It counts as absent from then on.

        Returns:
            What was stored before the call, or None if there was nothing, or only an expired value.

        Raises:
            Exception: the store did not answer within a second or two, or cannot promise to keep the value. A claim
                then becomes a 503 and nothing runs, whether or not the store has made the change.
        """
        raise NotImplementedError

    def check(self) -> Iterable[CheckMessage]:
        """Return what is wrong with the server, for `manage.py check --database`. It may ask the server."""
        return ()
