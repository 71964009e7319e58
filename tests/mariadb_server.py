"""A MariaDB server of a test's own, for settings that need a restart."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.management import call_command

from tests.clusters.aliases import alias
from tests.servers import DEADLINE, eventually

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
DATABASE = "shop"


def missing() -> str:
    """What the server needs and this machine has not."""
    needed = {
        "mysqlclient": find_spec("MySQLdb") is not None,
        "mariadbd": shutil.which("mariadbd", path=PATH) is not None,
    }
    return ", ".join(name for name, found in needed.items() if not found)


@contextmanager
def mariadb(*options: str) -> Iterator[dict[str, Any]]:
    """Start a server with an empty database. Gives the entry of `DATABASES`."""
    folder = Path(tempfile.mkdtemp(prefix="idempotency-mariadb-"))
    socket = folder / "socket"
    if os.geteuid() == 0:
        shutil.chown(folder, "mysql")
    data = f"--datadir={folder / 'data'}"
    install = _command("mariadb-install-db", "--auth-root-authentication-method=normal", data)
    subprocess.run(install, check=True, capture_output=True, timeout=60)
    command = _command("mariadbd", data, f"--socket={socket}", "--skip-networking", "--character-set-server=utf8mb4")
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually("the server", lambda: _has_created_the_database(process, socket))
        yield {
            "ENGINE": "django.db.backends.mysql",
            "NAME": DATABASE,
            "USER": "root",
            "PASSWORD": "",
            "HOST": "",
            "PORT": "",
            "OPTIONS": {"unix_socket": str(socket)},
        }
    finally:
        process.kill()
        process.wait(DEADLINE)
        shutil.rmtree(folder)


def _has_created_the_database(process: subprocess.Popen[bytes], socket: Path) -> bool:
    import MySQLdb

    assert process.poll() is None, "the server ended"
    with suppress(MySQLdb.OperationalError):  # not there yet
        connection = MySQLdb.connect(unix_socket=str(socket), user="root")
        connection.cursor().execute(f"CREATE DATABASE {DATABASE}")
        connection.close()
        return True
    return False


def _command(program: str, *arguments: str) -> list[str]:
    user = ["--user=mysql"] if os.geteuid() == 0 else []
    return [str(shutil.which(program, path=PATH)), "--no-defaults", *user, *arguments]


@contextmanager
def migrated(name: str, settings: dict[str, Any]) -> Iterator[None]:
    """Add the server to the project as a database alias, with all tables."""
    with alias(name, settings):
        call_command("migrate", database=name, verbosity=0)
        yield
