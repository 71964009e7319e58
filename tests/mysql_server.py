"""A real MySQL for tests, with nothing installed: Debian's newest packages, unpacked into a folder.

    python -m tests.mysql_server unpack FOLDER
    python -m tests.mysql_server run FOLDER [--OPTION…] COMMAND…

`unpack` needs a Debian machine, and its mirror. `run` starts a server of an unprivileged user on a socket, gives its
address to COMMAND as DATABASE_URL, and stops the server after COMMAND. Options that begin with `--` go to the server.

Debian's older suites have MariaDB only. The server runs with the loader of the newest suite, because its C library is
newer than the machine's.
The module needs Python alone, so that CI can run it before it installs a package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

NEWEST_SUITE = Path(__file__).parent / "clusters" / "newest_suite.sh"
DEADLINE = 60
"""Seconds until a server that does not answer counts as a failure."""


def unpack(folder: Path) -> int:
    """Download the server and its libraries into the folder, and unpack them. Returns an exit status."""
    command = ["bash", NEWEST_SUITE, "mysql-server-core", "mysqld", folder]
    if (status := subprocess.run(command, stdout=subprocess.DEVNULL).returncode) == 0 and os.geteuid() == 0:
        folder.chmod(0o755)  # the server's user reads here
        for parent in folder.parents:  # and passes through these: tox closes `.tox`
            if not (mode := parent.stat().st_mode) & 0o001:
                parent.chmod(mode | 0o001)
    return status


@contextmanager
def running(folder: Path, *options: str) -> Iterator[str]:
    """A server with an empty database `shop`; gives its URL. The server and its data end with the block."""
    with tempfile.TemporaryDirectory(prefix="mysql-") as place:
        data = Path(place)
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(data, "nobody", "nogroup")
        command = _server(folder, data)
        (data / "start.sql").write_text("CREATE DATABASE shop;\n")
        (data / "start.sql").chmod(0o644)
        _run([*command, "--initialize-insecure"])
        start = [*command, f"--socket={data}/socket", f"--init-file={data}/start.sql", *options]
        with (data / "log").open("wb") as log:
            process = subprocess.Popen(start, stdout=log, stderr=log, **_user())
        try:
            _await_start(process, data / "log")
            yield f"mysql://root@localhost/shop?unix_socket={data}/socket"
        finally:
            process.terminate()
            process.wait()


def _server(folder: Path, data: Path) -> list[str]:
    root = _root(folder)
    loaders = sorted(root.glob("usr/lib/*/ld-linux*.so.*"))
    if not loaders:
        raise RuntimeError(f"there is no server in {folder}: run python -m tests.mysql_server unpack {folder}")
    return [
        *(str(loaders[0]), "--library-path", str(loaders[0].parent), f"{root}/usr/sbin/mysqld", "--no-defaults"),
        f"--basedir={root}/usr",
        f"--lc-messages-dir={root}/usr/share/mysql",
        f"--character-sets-dir={root}/usr/share/mysql/charsets",
        f"--plugin-dir={root}/usr/lib/mysql/plugin",
        f"--datadir={data}/data",
        f"--pid-file={data}/pid",
        *("--skip-networking", "--mysqlx=OFF", "--secure-file-priv=NULL", "--max-connections=300"),
        # The tests kill clients, not this server. So the disk may be late.
        *("--skip-log-bin", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF"),
    ]


def _root(folder: Path) -> Path:
    return folder / "root"


def _user() -> dict[str, object]:
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **_user())
    if done.returncode:
        raise RuntimeError(f"MySQL did not start:\n{done.stdout.decode(errors='replace')}")


def _await_start(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while b"ready for connections" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"MySQL did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)  # between two looks


def main(action: str, folder: str, *words: str) -> int:
    if action == "unpack":
        return unpack(Path(folder).absolute())
    options = list(takewhile(lambda word: word.startswith("--"), words))
    with running(Path(folder).absolute(), *options) as url:
        return subprocess.run(words[len(options) :], env={**os.environ, "DATABASE_URL": url}).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
