"""Redis servers of this machine's package, on loopback and sockets only, and a line between two of them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

import redis

from tests.servers import eventually

AS_DEBIAN = ("--save", "3600 1 300 100 60 10000", "--appendonly", "no")
DURABLE = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")


def missing() -> str:
    """What stands in the way; empty: nothing."""
    return "" if shutil.which("redis-server") else "there is no `redis-server` on this machine"


class Server:
    """One server with a folder of its own, which outlives a kill."""

    def __init__(self, folder: str, *options: str) -> None:
        self.folder, self.options = folder, options
        self.address = f"{folder}/socket"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.start()

    def start(self) -> None:
        where = ("--dir", self.folder, "--unixsocket", self.address, "--bind", "127.0.0.1", "--port", str(self.port))
        command = ["redis-server", *where, "--repl-diskless-sync-delay", "0", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually("Redis to answer", self.answers)

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self.address)

    def answers(self) -> bool:
        assert self.process.poll() is None, "Redis ended"
        with suppress(redis.ConnectionError), self.client() as client:
            return Path(self.address).exists() and bool(client.ping())
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(*options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        server = Server(folder, *options)
        try:
            yield server
        finally:
            server.kill()


class Line:
    """Hands bytes on after a delay in seconds. `cut` loses what is on its way, as the loss of a machine does."""

    def __init__(self, port: int, delay: float) -> None:
        self.delay = delay
        self.whole = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[port], daemon=True).start()

    def cut(self) -> None:
        self.whole = False
        self.listener.close()

    def _accept(self, port: int) -> None:
        with suppress(OSError):  # cut
            while self.whole:
                one, _ = self.listener.accept()
                other = socket.create_connection(("127.0.0.1", port))
                for source, target in ((one, other), (other, one)):
                    queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                    threading.Thread(target=self._read, args=[source, queue], daemon=True).start()
                    threading.Thread(target=self._write, args=[queue, target], daemon=True).start()

    def _read(self, source: socket.socket, queue: SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            queue.put((time.monotonic() + self.delay, data))

    def _write(self, queue: SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        with target, suppress(OSError):
            while True:
                due, data = queue.get()
                time.sleep(max(0, due - time.monotonic()))
                if not data or not self.whole:
                    return
                target.sendall(data)
