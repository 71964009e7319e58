"""Real server processes for tests."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from django.db import connection

FAKE_GATEWAY = Path(__file__).parent.parent / "testproject" / "fake_gateway.py"
PAUSE = 20261120
ANSWER = "the called service answers"
"""The entry of the ledger that ends the calls which hang in the test server."""
DEADLINE = 60
"""Seconds until something that should have happened counts as a failure."""

PLAIN: dict[str, Any] = {"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "timeout": DEADLINE}
"""The servers speak plain HTTP. Without this, httpx loads all certificates of the machine at each call."""
http_get, http_post = partial(httpx.get, **PLAIN), partial(httpx.post, **PLAIN)


def eventually(what: str, probe: Callable[[], Any], *, pause: float = 0.01) -> Any:
    """What `probe` returns, once that is true. It is asked again after `pause` seconds."""
    deadline = time.monotonic() + DEADLINE
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE} seconds in vain: {what}")
        time.sleep(pause)  # between two looks, not instead of one
    return value


def gunicorn(*options: str, application: str = "tests.server.wsgi", **environment: str) -> AbstractContextManager[str]:
    """The test server on gunicorn; gives its URL. Its workers are forks of one process that has imported Django."""
    command = ("gunicorn", application, "--preload", "--bind", "fd://{fd}", "--timeout", "120")
    return _serving(*command, "--graceful-timeout", "1", *options, **environment)


def uvicorn() -> AbstractContextManager[str]:
    """The test server on uvicorn; gives its URL."""
    return _serving("uvicorn", "--factory", "django.core.asgi:get_asgi_application", "--fd", "{fd}")


@contextmanager
def process(*command: str | Path, ready: Callable[[], Any] = bool, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready when `ready` says so. It is killed at the end, with those that it has started."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(command, start_new_session=True, **{**quiet, **options})

    def is_ready() -> Any:
        assert started.poll() is None, f"{command} has ended"
        return ready()

    try:
        if ready is not bool:
            eventually(f"{command} to be ready", is_ready)
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(DEADLINE)


@contextmanager
def fake_gateway(*options: str) -> Iterator[httpx.Client]:
    """The shop's payment gateway as a process of its own; gives a client for its books."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        where = ("--fd", str(listener.fileno()))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            process(sys.executable, FAKE_GATEWAY, *where, *options, pass_fds=[listener.fileno()]),
            httpx.Client(base_url=url, timeout=DEADLINE) as client,
        ):
            yield client


def server_environment(**more: str) -> dict[str, str]:
    """Of a process with the test server's settings, on the database of the tests."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.server.settings",
        "SERVER_DATABASE": str(connection.settings_dict["NAME"]),
        **more,
    }


def running(module: str, *arguments: str, **environment: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A module as a process with `server_environment`. It is killed at the end."""
    return process(sys.executable, "-m", module, *arguments, env=server_environment(**environment))


@contextmanager
def _serving(*command: str, **environment: str) -> Iterator[str]:
    name = uuid4().hex
    try:
        with serving(*command, env=server_environment(SERVER_NAME=name, **environment)) as url:
            yield url
    finally:
        # Another server on this database goes on, and keeps its connections.
        eventually("the workers' connections to end", lambda: not _is_connected(name))


@contextmanager
def serving(
    *command: str,
    env: dict[str, str],
    path: str = "/read",
    python: str | Path = sys.executable,
    cwd: str | Path | None = None,
) -> Iterator[str]:
    """A module that serves the socket `{fd}`; gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def answers() -> bool:
        try:
            return http_get(url + path).status_code in (200, 405)
        except httpx.TransportError:
            return False

    module = [word.format(fd=listener.fileno()) for word in command]
    with process(python, "-m", *module, ready=answers, env=env, cwd=cwd, pass_fds=[listener.fileno()]):
        listener.close()
        yield url


def _is_connected(name: str) -> bool:
    """Whether workers of this server are connected. On MySQL they have a user of their own, named by `SERVER_USER`."""
    if connection.vendor == "postgresql":
        return bool(sessions(f"application_name LIKE 'worker-%%-{name}'"))
    return bool(mysql_sessions())


def mysql_sessions(*, at_work: bool = False) -> list[int]:
    """The numbers of the database sessions of the user `worker`: of all, or of those in the middle of a statement."""
    # MySQL's information_schema fails where a statement has binary values. MariaDB's performance_schema is empty.
    of_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
    table, prefix = (
        ("information_schema.processlist", "") if of_mariadb else ("performance_schema.threads", "processlist_")
    )
    busy = f"AND {prefix}command <> 'Sleep'" if at_work else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {prefix}id FROM {table} WHERE {prefix}user = 'worker' {busy}")
        return [row[0] for row in cursor.fetchall()]


def sessions(condition: str) -> list[int]:
    """The process ids of the workers whose database sessions meet the condition."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND {condition}", []
        )
        return [int(row[0].split("-")[1]) for row in cursor.fetchall()]


@contextmanager
def holding() -> Iterator[Callable[[], int]]:
    """Hold whoever comes to a pause; gives a function that waits for one and returns its worker's process id."""
    held = "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 20261120 AND NOT granted)"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
        try:
            yield lambda: eventually("a worker at the pause", lambda: sessions(held))[0]
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [PAUSE])
