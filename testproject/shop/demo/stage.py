"""What the demo needs: server processes, a database, ways to break things, and the rows of its table."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from django.conf import settings
from django.core.management.base import CommandError
from django.db import connection

PAUSE = 20261120
"""The number of the advisory lock that pauses a view in the middle of its work."""
DEADLINE = 30
"""Seconds to wait for anything. After that the demo fails."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `counted` was read from the database and the gateway after the requests."""

    what: str
    responses: str
    counted: str
    expected: str
    responses_ok: bool

    @property
    def ok(self) -> bool:
        return self.responses_ok and self.counted == self.expected

    def cells(self) -> tuple[str, ...]:
        return self.what, self.responses, self.counted, "ok" if self.ok else f"BROKEN, expected: {self.expected}"


def statuses(responses: list[httpx.Response]) -> str:
    if len(responses) == 1:
        return str(responses[0].status_code)
    counts = Counter(response.status_code for response in responses)
    return ", ".join(f"{n} x {status}" for status, n in sorted(counts.items()))


def is_replay_of(first: httpx.Response, response: httpx.Response) -> bool:
    replayed = response.headers.get("Idempotency-Replayed") == "true"
    return replayed and (response.status_code, response.content) == (first.status_code, first.content)


def compared(same: bool) -> str:
    return "same bytes" if same else "OTHER BYTES"


def at_once(n: int, send: Callable[[], httpx.Response]) -> list[httpx.Response]:
    with ThreadPoolExecutor(n) as pool:
        return [future.result(DEADLINE) for future in [pool.submit(send) for _ in range(n)]]


def until_final(send: Callable[[], httpx.Response]) -> httpx.Response:
    """Retry as a client should: the same request, until the response is not a conflict."""

    def probe() -> httpx.Response | None:
        try:
            response = send()
        except httpx.TransportError:
            return None
        return None if response.status_code == 409 else response

    response: httpx.Response = eventually("a final response", probe)
    return response


def eventually(what: str, probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise CommandError(f"This did not happen within {DEADLINE} seconds: {what}.")
        time.sleep(0.02)
    return value


@contextmanager
def fresh_database() -> Iterator[None]:
    """Create and migrate a database for the demo, and drop it afterwards. Other databases stay unchanged."""
    original = connection.settings_dict["NAME"]
    connection.settings_dict["TEST"]["NAME"] = f"shop_demo_{os.getpid()}"
    os.environ["SHOP_DATABASE"] = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        yield
    finally:
        connection.creation.destroy_test_db(original, verbosity=0)


@contextmanager
def paused_in_the_middle() -> Iterator[Callable[[], int]]:
    """Pause views that ask for it, after their write. Yields a function that returns the paused worker's process id."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
        try:
            yield lambda: eventually("a worker in the middle of its work", _paused_worker)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [PAUSE])


def _paused_worker() -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid) "
            "WHERE locktype = 'advisory' AND objid = %s AND NOT granted",
            [PAUSE],
        )
        row = cursor.fetchone()
    return int(row[0].removeprefix("shop-")) if row else None


@contextmanager
def gateway(*options: str) -> Iterator[httpx.Client]:
    """Run the fake gateway as a process on a free port. Yields a client for the gateway."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        program = str(settings.BASE_DIR / "fake_gateway.py")
        process = subprocess.Popen(
            [sys.executable, program, "--fd", str(listening.fileno()), *options], pass_fds=[listening.fileno()]
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=DEADLINE) as client:
                yield client
        finally:
            process.kill()
            process.wait()


@contextmanager
def serving(**environment: str) -> Iterator[str]:
    """Run the shop on gunicorn with four worker processes on a free port. Yields the address."""
    with tempfile.TemporaryFile() as log, socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        port = listening.getsockname()[1]
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "config.wsgi", "--bind", f"fd://{listening.fileno()}"),
                *("--workers", "4", "--threads", "16", "--timeout", "120", "--graceful-timeout", "5"),
                *("--chdir", str(settings.BASE_DIR)),
            ],
            pass_fds=[listening.fileno()],
            env={**os.environ, "DEMO": "1", "DJANGO_SETTINGS_MODULE": "config.settings", **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            eventually("the server responds", lambda: _responds(url, process))
            yield url
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _responds(url: str, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise CommandError(f"The server ended with status {process.returncode}.")
    try:
        return httpx.get(f"{url}/orders/", timeout=1).status_code == 405
    except httpx.TransportError:
        return False


def wait_for_the_end(parent: int) -> None:
    """Return at Ctrl-C, or when the process that started the demo has ended: a demo alone would run for ever."""
    with suppress(KeyboardInterrupt):
        while os.getppid() == parent:
            time.sleep(0.5)
