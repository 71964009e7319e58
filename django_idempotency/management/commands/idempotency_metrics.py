from __future__ import annotations

import os
from socketserver import ThreadingMixIn
from threading import Event
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.core.management.base import CommandError, CommandParser

from ..base import IdempotencyCommand, several, stoppable

POLL = 0.5
"""The maximum number of seconds that the command takes to end after a signal."""


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    timeout = POLL


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
        with server, stoppable(stop):
            self.say(f"Serving metrics at http://{host}:{server.server_port}/metrics")
            while not stop.is_set():
                server.handle_request()
