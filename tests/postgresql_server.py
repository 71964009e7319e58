"""A PostgreSQL of another version for the tests, out of any folder of its programs.

    python -m tests.postgresql_server BINARIES COMMAND…

The server runs as an unprivileged user on a socket, and COMMAND gets its address as DATABASE_URL. The server and its
data end with COMMAND. BINARIES is such as /usr/lib/postgresql/15/bin. The module needs Python alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS = ("listen_addresses=''", "fsync=off", "max_connections=300", "max_locks_per_transaction=128")


@contextmanager
def running(binaries: Path) -> Iterator[str]:
    """A server with an empty database `postgres`; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="postgresql-") as place:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(place, "nobody", "nogroup")
            user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        data = f"{place}/data"
        settings = [f"-c {setting}" for setting in (*SETTINGS, f"unix_socket_directories={place}")]

        def program(name: str, *arguments: str) -> None:
            subprocess.run([binaries / name, "-D", data, *arguments], check=True, stdout=subprocess.DEVNULL, **user)

        program("initdb", "--auth=trust", "--encoding=utf8", "--username=postgres", "--no-sync")
        program("pg_ctl", "start", "--wait", "-l", f"{place}/log", "-o", " ".join(settings))
        try:
            yield f"postgresql://postgres@/postgres?host={place}"
        finally:
            program("pg_ctl", "stop", "--mode=immediate")


def main(binaries: str, *command: str) -> int:
    with running(Path(binaries)) as url:
        return subprocess.run(command, env={**os.environ, "DATABASE_URL": url}).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
