"""Redis and RabbitMQ as Debian has them: processes with their data in a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import DEADLINE, eventually

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Beside the command of Debian, which changes the user."""


@contextmanager
def redis_server() -> Iterator[str]:
    """Gives the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="idempotency-") as folder:
        path = f"{folder}/socket"
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--dir", folder, "--save", ""]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually("Redis to listen", lambda: _connects(socket.AF_UNIX, path, process))
            yield path
        finally:
            process.kill()
            process.wait()


@contextmanager
def rabbitmq_server() -> Iterator[str]:
    """Gives its URL. Erlang's daemon of names is one of its own too, and ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="idempotency-rabbitmq-"))
    port, nodes, names = _free_ports(3)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_DIST_PORT": str(nodes),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_NODENAME": f"tests{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
    }
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([RABBITMQ], env=environment, stdout=output, stderr=output)
    try:
        eventually("RabbitMQ to listen", lambda: _connects(socket.AF_INET, ("127.0.0.1", port), process))
        yield f"amqp://guest:guest@127.0.0.1:{port}//"
    finally:
        process.terminate()
        process.wait(DEADLINE)
        subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, timeout=DEADLINE, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _connects(family: int, address: str | tuple[str, int], process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the broker ended"
    with socket.socket(family) as probe:
        return probe.connect_ex(address) == 0


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
