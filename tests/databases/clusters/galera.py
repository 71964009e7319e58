"""A Galera cluster of three nodes, each with its own data folder, out of Debian's packages."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import mariadb_server
from tests.servers import DEADLINE, eventually

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
NODES = ("node1", "node2", "node3")


def missing() -> str:
    """What the cluster needs and this machine has not."""
    asked = "" if "CLUSTERS" in os.environ else "CLUSTERS=1, as in tox run -e clusters"
    return asked or mariadb_server.missing(PROVIDER, programs=("rsync",))


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
                mariadb_server.program("mariadbd", *(f"--{name}={value}" for name, value in options.items())),
                env={**os.environ, "PATH": mariadb_server.PATH},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.socket.with_suffix(".log").read_text()
        return mariadb_server.execute(self.socket, "SHOW STATUS LIKE 'wsrep_ready'") == [("wsrep_ready", "ON")]

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE)


@contextmanager
def galera() -> Iterator[list[Node]]:
    """Three nodes that replicate to each other, with an empty database."""
    with mariadb_server.folder() as folder:
        nodes = [Node(folder, name) for name in NODES]
        first, *others = nodes
        try:
            mariadb_server.install(first.data)
            first.start()
            eventually("the first node", first.is_ready)
            mariadb_server.execute(first.socket, f"CREATE DATABASE {mariadb_server.DATABASE}")
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


def _free_ports() -> list[int]:
    """Ports that the system does not give to others at random: it just gave them to us."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    try:
        return [open_socket.getsockname()[1] for open_socket in sockets]
    finally:
        for open_socket in sockets:
            open_socket.close()
