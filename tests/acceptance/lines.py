"""A line between a client and the shop that breaks on demand."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.acceptance.conftest import RunningShop
from tests.servers import PAUSE, eventually

KEY = re.compile(rb"(?i)\nidempotency-key: *(\S+)")


class BrokenLine:
    """A proxy between client and shop: what it does with each request in turn.

    lose: hand it on, and hang up without the answer. refuse: hang up at once. pass: hand both on, as are all GETs and
    what comes after the script.
    """

    def __init__(self, shop: RunningShop, *script: str) -> None:
        self.shop = shop
        self.script = list(script)
        self.statuses: list[int | str] = []
        self.requests: list[bytes] = []

    @property
    def keys(self) -> set[str]:
        """The different keys that were sent."""
        return {key.decode() for request in self.requests for key in KEY.findall(request)}

    @contextmanager
    def listening(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self.accept, args=[listener], daemon=True).start()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"

    def accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed: the test is over
            while True:
                line, _ = listener.accept()
                threading.Thread(target=self.serve, args=[line], daemon=True).start()

    def serve(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as reading:
            request, length = b"", 0
            while (header := reading.readline()) not in (b"\r\n", b""):
                if not header.lower().startswith(b"connection:"):
                    request += header
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            if not request:
                return
            body = reading.read(length)
            what = self.script.pop(0) if self.script and request.startswith(b"POST") else "pass"
            self.requests.append(request)
            if what == "refuse":
                self.statuses.append("refused")
                return
            with socket.create_connection(("127.0.0.1", self.shop.port)) as server:
                pause = b"X-Demo-Pause: %d\r\n" % PAUSE if what == "lose" else b""
                server.sendall(request + pause + b"Connection: close\r\n\r\n" + body)
                if what == "lose":
                    eventually("the shop to be in the middle of its work", self.shop.held)
                    self.statuses.append("lost")
                    return
                answer = self.read(server)
                self.statuses.append(int(answer.split(b" ")[1]) if answer else "cut")
                line.sendall(answer)

    def read(self, server: socket.socket) -> bytes:
        """The whole answer. Nothing: the worker has died."""
        try:
            return server.makefile("rb").read()
        except ConnectionResetError:
            return b""
