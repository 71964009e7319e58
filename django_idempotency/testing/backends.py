"""Clear the keys that are kept in the test process's memory."""

from __future__ import annotations

from ..backends.memory import MemoryBackend
from ..engine.conf import backend_for, get_settings


def clear_backends() -> None:
    """Forget the keys in each `MemoryBackend` of `BACKENDS`, because a `TestCase`'s rollback does not remove them.

    Call it before each test, in a fixture or in `setUp`. Other backends are left alone.
    """
    for name in get_settings().backends or {}:
        backend = backend_for(name)
        if isinstance(backend, MemoryBackend):
            backend.clear()
