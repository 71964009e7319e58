"""Redis as Debian has it: a process with its data in a folder."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers import eventually


@contextmanager
def redis_server() -> Iterator[str]:
    """Gives the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="idempotency-") as folder:
        path = f"{folder}/socket"
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--dir", folder, "--save", ""]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually("Redis to listen", lambda: _connects(path, process))
            yield path
        finally:
            process.kill()
            process.wait()


def _connects(path: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the broker ended"
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0
