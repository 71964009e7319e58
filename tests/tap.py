"""What really goes over the wire to PostgreSQL: a tap between Django and the server's socket."""

from __future__ import annotations

import re
import socket
import socketserver
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django.db import connection, connections

from django_idempotency.engine.stores import store_for
from tests.server.boundaries.wire import connected

PORT = 5432


class Tap:
    """`messages`: each message after which the client waits for an answer, that is each round trip."""

    def __init__(self, delay: float = 0) -> None:
        self.delay = delay
        self.messages: list[str] = []
        self._sockets: list[socket.socket] = []
        self._to_lose, self._losing = 0, threading.Event()

    def cut(self) -> None:
        """Break all connections, as a failing network does."""
        for open_socket in self._sockets:
            _end(open_socket)

    def lose_answer(self, number: int) -> None:
        """Break the connection when the server has answered the n-th message from now on."""
        self.take()
        self._to_lose = number

    def take(self) -> list[str]:
        """The messages since the last time."""
        taken, self.messages = self.messages, []
        return taken

    def connect(self, client: socket.socket) -> None:
        with connected(connection.settings_dict["HOST"], connection.settings_dict["PORT"] or PORT) as server:
            self._sockets += [client, server]
            threading.Thread(target=_copy, args=(server, client, self._losing), daemon=True).start()
            try:
                self._listen(client, server)
            finally:
                _end(server)  # closing alone would not, while the other thread reads from it

    def _listen(self, client: socket.socket, server: socket.socket) -> None:
        pending, started, statements = b"", False, ""
        while data := _received(client):
            pending += data
            while len(pending) >= 5:
                header = 1 if started else 0
                length = header + struct.unpack_from("!I", pending, header)[0]
                if len(pending) < length:
                    break
                kind, text, pending = pending[:1], pending[header + 4 : length], pending[length:]
                if started and kind == b"Q":
                    self._note(text.rstrip(b"\0").decode())
                elif started and kind == b"P":
                    statements += text.split(b"\0")[1].decode()
                elif started and kind == b"S":
                    self._note(statements)
                    statements = ""
                started = True
            time.sleep(self.delay)
            try:
                server.sendall(data)
            except OSError:
                return

    def _note(self, message: str) -> None:
        self.messages.append(message)
        if len(self.messages) == self._to_lose:
            self._to_lose = 0
            self._losing.set()


def verbs(messages: list[str]) -> list[list[str]]:
    """The first words of each message's statements."""
    without_values = (re.sub("'[^']*'", "", message) for message in messages)
    return [[part.split()[0] for part in message.split("; ")] for message in without_values]


@contextmanager
def tapped(delay: float = 0, **changes: Any) -> Iterator[Tap]:
    """This thread's connection to the default database goes through a tap.

    delay: seconds that each round trip takes longer. changes: of the connection's settings.
    """
    store_for(connection.alias)  # asks once in a process whether this is Citus: no part of what a request sends
    tap = Tap(delay)
    usual = connections["default"]
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / f".s.PGSQL.{PORT}")

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                tap.connect(self.request)

        with socketserver.ThreadingUnixStreamServer(address, Handler) as listener:
            listener.daemon_threads = True
            threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
            options = {**usual.settings_dict["OPTIONS"], **changes.pop("OPTIONS", {})}
            wrapper = usual.copy()
            wrapper.settings_dict.update(HOST=folder, PORT=str(PORT), OPTIONS=options, **changes)
            connections["default"] = wrapper
            try:
                wrapper.ensure_connection()
                tap.take()
                yield tap
            finally:
                wrapper.close()
                if wrapper.settings_dict["OPTIONS"].get("pool"):
                    wrapper.close_pool()
                connections["default"] = usual
                listener.shutdown()


def _copy(source: socket.socket, target: socket.socket, losing: threading.Event) -> None:
    while data := _received(source):
        if losing.is_set():
            losing.clear()
            break
        try:
            target.sendall(data)
        except OSError:
            return
    _end(target)  # the server has ended, or its answer is lost: let the client see it


def _end(open_socket: socket.socket) -> None:
    with suppress(OSError):  # it may have ended already
        open_socket.shutdown(socket.SHUT_RDWR)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


@contextmanager
def watched() -> Iterator[list[str]]:
    """The verbs of the statements that an execute wrapper sees meanwhile."""
    seen: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql.split()[0])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield seen
