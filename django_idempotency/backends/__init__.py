"""Key stores for views that write nothing to the project's databases.

A backend consists of one method: compare-and-swap with an expiry time. The engine above it decides what the keys mean,
using the same rules, errors and events as for keys in the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from django.core.checks import CheckMessage

__all__ = ["KeyValueBackend"]


class KeyValueBackend:
    """The base class of all backends. The constructor receives the `OPTIONS` from `BACKENDS` as keyword arguments.

    A single instance is shared by all threads in a process.
    """

    max_bytes: ClassVar[int | None] = None
    """The size in bytes of the longest value that the store accepts, or None if there is no limit. For a longer
    response, a tombstone is stored."""

    def swap(self, name: str, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        """Return the value stored under `name`. If it equals `old`, replace it in the same atomic step.

        Args:
            name: about 40 ASCII characters without spaces.
            old: the value that must be stored for a change to happen. None means that there must be no value, or only
                an expired one.
            new: the value to store instead, which is never empty. None deletes the stored value. If `old` is also
                None, the call only reads.
            seconds: how long until the new value expires, by the store's own clock. From then on, the value counts as
                absent.

        Returns:
            What was stored before the call, or None if there was nothing, or only an expired value.

        Raises:
            Exception: the store did not answer within a second or two, or cannot promise to keep the value. A claim
                is then answered with a 503 and nothing runs, whether or not the store has made the change.
        """
        raise NotImplementedError

    def check(self) -> Iterable[CheckMessage]:
        """Return what is wrong with the server, for `manage.py check --database`. This may query the server."""
        return ()
