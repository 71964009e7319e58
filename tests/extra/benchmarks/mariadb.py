"""A MariaDB of this machine's package that lives as long as it is needed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.servers import eventually


def missing() -> str:
    """What stands in the way; empty: nothing."""
    if shutil.which("mariadbd") is None:
        return "there is no `mariadbd` on this machine"
    return "" if find_spec("MySQLdb") else "mysqlclient is not installed (`tox run -e benchmarks-mariadb` does it)"


@contextmanager
def running() -> Iterator[str]:
    """In its default settings; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        owner = ["--user=mysql"] if os.geteuid() == 0 else []
        if owner:
            shutil.chown(folder, "mysql")
        data, address = f"--datadir={folder}/data", f"{folder}/socket"
        install = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", data, *owner]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        command = ["mariadbd", "--no-defaults", data, f"--socket={address}", "--skip-networking", *owner]
        process = subprocess.Popen([*command, "--character-set-server=utf8mb4"], stderr=subprocess.DEVNULL)
        try:
            eventually("MariaDB's socket", lambda: _answers(process, address))
            yield f"mysql://root@localhost/shop?unix_socket={address}"
        finally:
            process.terminate()
            process.wait()


def _answers(process: subprocess.Popen[bytes], address: str) -> bool:
    assert process.poll() is None, "MariaDB ended"
    if not Path(address).exists():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(address) == 0
