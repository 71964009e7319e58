"""A MariaDB server of a test's own, for settings that need a restart.

`python -m tests.mariadb_server COMMAND…` runs a command that finds such a server in DATABASE_URL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.management import call_command

from tests.databases.clusters.aliases import alias
from tests.servers import process

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
DATABASE = "shop"


def has_driver() -> bool:
    return find_spec("pymysql" if os.environ.get("MYSQL_DRIVER") == "pymysql" else "MySQLdb") is not None


def missing(*files: Path, programs: tuple[str, ...] = ()) -> str:
    """What the server, or a test, needs and this machine has not."""
    needed = {
        "mysqlclient": has_driver(),
        **{program: shutil.which(program, path=PATH) is not None for program in ("mariadbd", *programs)},
        **{str(file): file.exists() for file in files},
    }
    return ", ".join(name for name, found in needed.items() if not found)


def install(folder: Path) -> None:
    """Make an empty data folder."""
    command = program("mariadb-install-db", "--auth-root-authentication-method=normal", f"--datadir={folder}")
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder of the server's user."""
    with tempfile.TemporaryDirectory(prefix="idempotency-mariadb-") as name:
        Path(name).chmod(0o755)
        if os.geteuid() == 0:
            shutil.chown(name, "mysql")
        yield Path(name)


@contextmanager
def mariadb(*options: str) -> Iterator[dict[str, Any]]:
    """Start a server with an empty database. Gives the entry of `DATABASES`."""
    with folder() as place:
        data, socket = f"--datadir={place / 'data'}", place / "socket"
        install(place / "data")
        command = program(
            "mariadbd", data, f"--socket={socket}", "--skip-networking", "--character-set-server=utf8mb4", *options
        )
        with process(*command, ready=lambda: execute(socket, f"CREATE DATABASE {DATABASE}") is not None):
            yield settings(socket)


def settings(socket: Path) -> dict[str, Any]:
    """The entry of `DATABASES`."""
    unused = {"PASSWORD": "", "HOST": "", "PORT": ""}
    engine = {"ENGINE": "django.db.backends.mysql", "NAME": DATABASE, "USER": "root"}
    return {**engine, **unused, "OPTIONS": {"unix_socket": str(socket)}}


def execute(socket: Path, sql: str) -> list[Any] | None:
    """The rows. None: the server is not there yet."""
    import MySQLdb

    with suppress(MySQLdb.OperationalError), closing(MySQLdb.connect(unix_socket=str(socket), user="root")) as server:
        cursor = server.cursor()
        cursor.execute(sql)
        return list(cursor.fetchall())
    return None


def program(name: str, *arguments: str) -> list[str]:
    user = ["--user=mysql"] if os.geteuid() == 0 else []
    return [str(shutil.which(name, path=PATH)), "--no-defaults", *user, *arguments]


@contextmanager
def migrated(name: str, settings: dict[str, Any]) -> Iterator[None]:
    """Add the server to the project as a database alias, with all tables."""
    with alias(name, settings):
        call_command("migrate", database=name, verbosity=0)
        yield


def url(settings: dict[str, Any]) -> str:
    return f"mysql://root@localhost/{settings['NAME']}?unix_socket={settings['OPTIONS']['unix_socket']}"


if __name__ == "__main__":
    if lacking := missing():
        sys.exit(f"NOT RUN: MariaDB, because this is missing: {lacking}")
    with mariadb("--max-connections=300", "--innodb-flush-log-at-trx-commit=0") as started:
        sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, "DATABASE_URL": url(started)}).returncode)
