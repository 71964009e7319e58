"""kill -9 at a boundary: a worker that ends itself before or after its n-th message to the database, or call.

`counted` is a WSGI middleware that counts the boundaries of a request. The header `X-Kill-At: n` makes the worker send
itself SIGKILL at boundary n; every answer tells in `X-Boundaries` how many it has passed. `X-Plain` forbids the package
to send BEGIN and COMMIT together with statements of its own. A worker that counts serves one request at a time.

On PostgreSQL the boundaries are on the wire (`SERVER_BOUNDARIES`, wire.py): Django's classes and psycopg's stay as they
are, because the package sends its messages beside Django's cursors only there. `tests.server.mysql_boundaries` is
Django's MySQL backend with a boundary around each statement, COMMIT and ROLLBACK.
"""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

from django.db import Error, connection, transaction

from tests.server.boundaries import wire

_current = SimpleNamespace(counting=False, count=0, kill_at=0)


def boundary() -> None:
    """Count; die if this is the one."""
    if _current.counting:
        _current.count += 1
        if _current.count == _current.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _watched(execute: Any, *args: Any) -> Any:
    return execute(*args)


def _warm_up() -> None:
    """So that the first request of a worker has no more boundaries than the next one. It leaves nothing behind.

    The first claim of a connection is committed by itself. On connections that are kept, it is made here.
    """
    from django_idempotency import run_once  # the apps are ready by now
    from tests.ways import warm_up

    with suppress(Error), transaction.atomic():
        run_once(dict, scope="warm", key=str(os.getpid()), operation="warm")
        transaction.set_rollback(True)
    with suppress(Error):
        warm_up()


def counted(application: Any) -> Any:
    """The WSGI middleware. The last boundary is after all the work, before the answer is sent."""

    def wrapped(environ: Any, start_response: Any) -> Any:
        if "SERVER_BOUNDARIES" in os.environ and connection.vendor == "postgresql":
            if wire.tap(connection.settings_dict, boundary):
                _warm_up()
            with suppress(Error):  # the request meets the same
                connection.ensure_connection()
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
