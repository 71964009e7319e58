"""A Galera cluster of three nodes, each with its own data folder, out of Debian's packages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers import DEADLINE, eventually

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
NODES = ("node1", "node2", "node3")
DATABASE = "shop"


def missing() -> str:
    """What the cluster needs and this machine has not."""
    needed = {
        "CLUSTERS=1, as in tox run -e clusters": "CLUSTERS" in os.environ,
        "mysqlclient": find_spec("MySQLdb") is not None,
        "galera-4": PROVIDER.exists(),
        **{command: shutil.which(command, path=_path()) is not None for command in ("mariadbd", "rsync")},
    }
    return ", ".join(name for name, found in needed.items() if not found)


class Node:
    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = folder / name
        self.socket = folder / f"{name}.sock"
        self.ports = _free_ports()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *others: Node) -> None:
        """Join the others. Without others, begin the cluster."""
        group, incremental, whole = self.ports
        provider = f"gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{incremental};gcache.size=8M"
        options = {
            "datadir": self.data,
            "socket": self.socket,
            "skip-networking": 1,
            "binlog-format": "ROW",
            "innodb-autoinc-lock-mode": 2,
            "innodb-flush-log-at-trx-commit": 0,
            "innodb-log-file-size": "8M",
            "character-set-server": "utf8mb4",
            "wsrep-on": "ON",
            "wsrep-provider": PROVIDER,
            "wsrep-node-name": self.name,
            "wsrep-node-address": f"127.0.0.1:{group}",
            "wsrep-cluster-name": "tests",
            "wsrep-provider-options": provider,
            "wsrep-sst-method": "rsync",
            "wsrep-sst-receive-address": f"127.0.0.1:{whole}",
            "wsrep-cluster-address": "gcomm://" + ",".join(f"127.0.0.1:{other.ports[0]}" for other in others),
        }
        with self.socket.with_suffix(".log").open("wb") as log:
            self.process = subprocess.Popen(
                _command("mariadbd", *(f"--{name}={value}" for name, value in options.items())),
                env={**os.environ, "PATH": _path()},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def execute(self, sql: str) -> list[Any]:
        import MySQLdb

        connection = MySQLdb.connect(unix_socket=str(self.socket), user="root")
        try:
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall())
        finally:
            connection.close()

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.socket.with_suffix(".log").read_text()
        with suppress(Exception):  # not there yet
            return self.execute("SHOW STATUS LIKE 'wsrep_ready'") == [("wsrep_ready", "ON")]
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE)

    def settings(self) -> dict[str, Any]:
        """The entry of `DATABASES`."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": DATABASE,
            "USER": "root",
            "PASSWORD": "",
            "HOST": "",
            "PORT": "",
            "OPTIONS": {"unix_socket": str(self.socket)},
        }


@contextmanager
def galera() -> Iterator[list[Node]]:
    """Three nodes that replicate to each other, with an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="idempotency-galera-"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "mysql")
    nodes = [Node(folder, name) for name in NODES]
    first, *others = nodes
    try:
        install = _command("mariadb-install-db", "--auth-root-authentication-method=normal", f"--datadir={first.data}")
        subprocess.run(install, check=True, capture_output=True, timeout=60)
        first.start()
        eventually("the first node", first.is_ready)
        first.execute(f"CREATE DATABASE {DATABASE}")
        first.stop()
        # The same data at the same position: the others need no copy from the first.
        first.data.joinpath("galera.cache").unlink()
        for node in others:
            subprocess.run(["cp", "-a", str(first.data), str(node.data)], check=True, timeout=60)
        first.start()
        eventually("the first node", first.is_ready)
        for node in others:
            node.start(first)
        for node in others:
            eventually(f"{node.name} to join", node.is_ready)
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(folder)


def _command(program: str, *arguments: str) -> list[str]:
    user = ["--user=mysql"] if os.geteuid() == 0 else []
    return [str(shutil.which(program, path=_path())), "--no-defaults", *user, *arguments]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin"


def _free_ports() -> list[int]:
    """Ports that the system does not give to others at random: it just gave them to us."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    try:
        return [open_socket.getsockname()[1] for open_socket in sockets]
    finally:
        for open_socket in sockets:
            open_socket.close()
