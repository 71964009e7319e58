"""kill -9 at a boundary: a worker that ends itself before or after its n-th statement, COMMIT or call.

The package is Django's PostgreSQL backend (`ENGINE`) with a boundary around each statement, COMMIT and ROLLBACK.
`tests.server.mysql_boundaries` is Django's MySQL backend with the same.
`counted` is a WSGI middleware that counts the boundaries of a request. The header `X-Kill-At: n` makes the worker send
itself SIGKILL at boundary n; every answer tells in `X-Boundaries` how many it has passed. `X-Plain` forbids the package
to send BEGIN and COMMIT together with statements of its own.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from typing import Any

from django.db import connection

_current = threading.local()


def boundary() -> None:
    """Count; die if this is the one."""
    if getattr(_current, "counting", False):
        _current.count += 1
        if _current.count == _current.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _watched(execute: Any, *args: Any) -> Any:
    return execute(*args)


def counted(application: Any) -> Any:
    """The WSGI middleware. The last boundary is after all the work, before the answer is sent."""

    def wrapped(environ: Any, start_response: Any) -> Any:
        _current.counting, _current.count = True, 0
        _current.kill_at = int(environ.get("HTTP_X_KILL_AT", 0))

        def start(status: str, headers: list[tuple[str, str]], *args: Any) -> Any:
            boundary()
            return start_response(status, [*headers, ("X-Boundaries", str(_current.count))], *args)

        try:
            with connection.execute_wrapper(_watched) if environ.get("HTTP_X_PLAIN") else nullcontext():
                return application(environ, start)
        finally:
            _current.counting = False

    return wrapped
