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
from typing import Any

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
    root = folder / "root"
    loader = next(root.glob("usr/lib/*/ld-linux*.so.*"), None)
    if loader is None:
        raise RuntimeError(f"there is no server in {folder}: run python -m tests.mysql_server unpack {folder}")
    with tempfile.TemporaryDirectory(prefix="mysql-") as place:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(place, "nobody", "nogroup")
            user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        command = [
            *(loader, "--library-path", loader.parent, f"{root}/usr/sbin/mysqld", "--no-defaults"),
            *(f"--basedir={root}/usr", f"--lc-messages-dir={root}/usr/share/mysql", f"--datadir={place}/data"),
            *(f"--character-sets-dir={root}/usr/share/mysql/charsets", f"--plugin-dir={root}/usr/lib/mysql/plugin"),
            *(f"--pid-file={place}/pid", f"--socket={place}/socket", "--skip-networking", "--mysqlx=OFF"),
            *("--secure-file-priv=NULL", "--max-connections=300"),
            # The tests kill clients, not this server. So the disk may be late.
            *("--skip-log-bin", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF"),
        ]
        start, log = Path(place, "start.sql"), Path(place, "log")
        start.write_text("CREATE DATABASE shop;\n")
        start.chmod(0o644)
        with log.open("wb") as output:
            said: dict[str, Any] = {"stdout": output, "stderr": output, **user}
            made = subprocess.run([*command, "--initialize-insecure"], **said)
            process = subprocess.Popen([*command, f"--init-file={start}", *options], **said)
        try:
            deadline = time.monotonic() + DEADLINE
            while b"ready for connections" not in log.read_bytes():
                if made.returncode or process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"MySQL did not start:\n{log.read_text(errors='replace')}")
                time.sleep(0.05)  # between two looks
            yield f"mysql://root@localhost/shop?unix_socket={place}/socket"
        finally:
            process.terminate()
            process.wait()


def main(action: str, folder: str, *words: str) -> int:
    if action == "unpack":
        return unpack(Path(folder).absolute())
    options = list(takewhile(lambda word: word.startswith("--"), words))
    with running(Path(folder).absolute(), *options) as url:
        return subprocess.run(words[len(options) :], env={**os.environ, "DATABASE_URL": url}).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
