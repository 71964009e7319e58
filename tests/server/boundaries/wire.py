"""A tap on a worker's way to PostgreSQL, in the worker's own process: a boundary before and after each message."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

READY_FOR_QUERY = b"Z\0\0\0\5"
"""How the end of an answer begins. One byte follows: the state of the transaction."""
_tapped: set[int] = set()
"""The process that listens: a fork of it has to listen anew."""


def tap(settings: dict[str, Any], boundary: Callable[[], None]) -> bool:
    """From now on the connections of this process go through the tap: it changes `settings`, of an alias.

    False: they do already.
    """
    if os.getpid() in _tapped:
        return False
    _tapped.add(os.getpid())
    host, port = settings["HOST"], int(settings["PORT"] or 5432)
    listener = socket.create_server(("127.0.0.1", 0))
    settings.update(HOST="127.0.0.1", PORT=str(listener.getsockname()[1]))

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=[client], daemon=True).start()

    def serve(client: socket.socket) -> None:
        try:
            server = connected(host, port)
        except OSError:  # the database is down
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=copy, args=[server, client], daemon=True).start()
        copy(client, server, asks=True)

    def copy(source: socket.socket, target: socket.socket, *, asks: bool = False) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if asks or data[-6:-1] == READY_FOR_QUERY:
                    boundary()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=accept, daemon=True).start()
    return True


def connected(host: str, port: int | str) -> socket.socket:
    if not host.startswith("/"):
        return socket.create_connection((host or "localhost", port))
    plain = socket.socket(socket.AF_UNIX)
    plain.connect(f"{host}/.s.PGSQL.{port}")
    return plain
