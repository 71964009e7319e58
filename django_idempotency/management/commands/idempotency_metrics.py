from __future__ import annotations

import os
import time
from contextlib import suppress
from socket import SHUT_RDWR
from socketserver import ThreadingMixIn
from threading import Event
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.core.management.base import CommandError, CommandParser

from ..base import IdempotencyCommand, several, stoppable

POLL = 0.5
"""The maximum number of seconds that the command takes to end after a signal."""


PATIENCE = 30.0
"""Seconds after which a connection is cut off. Prometheus gives up earlier, after 10 seconds by default."""
MOST = 50
"""The maximum number of connections. If there are more, the oldest are cut off, because Prometheus's are short."""


class Server(ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread of its own, but only for a limited time: see `cut_off`."""

    daemon_threads = True
    timeout = POLL

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.opened: dict[Any, float] = {}  # oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        self.opened[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.opened.pop(request, None)
        super().shutdown_request(request)

    def cut_off(self) -> None:
        """Shut down connections that are too old or too many. A timeout would not end a client that sends slowly."""
        connections = list(self.opened.items())
        for number, (connection, since) in enumerate(connections):
            if number < len(connections) - MOST or time.monotonic() - since > PATIENCE:
                with suppress(OSError):  # the connection has already ended
                    connection.shutdown(SHUT_RDWR)


class Silent(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Log nothing, because Prometheus sends a request every few seconds."""


class Command(IdempotencyCommand):
    help = (
        "Serve the metrics for Prometheus from a separate process, which still responds when all of the "
        "site's workers are busy. If PROMETHEUS_MULTIPROC_DIR is set, the workers' counters are served, too. The "
        "command runs until a signal ends it; its exit status is then 0."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="The address to listen on (%(default)s).")
        parser.add_argument("--port", type=int, default=9464, help="The port to listen on (%(default)s).")
        some = "Database alias; default: the write alias. May be repeated."
        parser.add_argument("--database", action="append", default=[], help=some)

    def handle(self, *args: Any, **options: Any) -> None:
        from prometheus_client import CollectorRegistry, make_wsgi_app
        from prometheus_client.multiprocess import MultiProcessCollector

        from ...metrics import KeyCollector  # without prometheus-client, raises an error that says what to install

        registry, stop = CollectorRegistry(), Event()
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(KeyCollector(*several(options["database"])))
        host, port = options["host"], options["port"]
        try:
            server = make_server(host, port, make_wsgi_app(registry), Server, Silent)
        except OSError as error:
            raise CommandError(f"{host}:{port}: {error}") from error

        def serve() -> None:
            self.say(f"Serving metrics at http://{host}:{server.server_port}/metrics")
            while not stop.is_set():
                server.handle_request()
                server.cut_off()

        with server:
            stoppable(stop, serve)
