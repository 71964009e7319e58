#!/usr/bin/env python
"""A fake payment gateway for demos and tests: a process of its own that keeps a ledger and fails on demand.

    POST /charges {"amount": 1000, "reference": "order 1"}   201; with an Idempotency-Key it charges once for each key
    GET  /charges[?reference=…|?key=…]                       the charges in the ledger
    PUT  /behaviour {"reference": …, "behaviour": …}         how to treat the next charge with that reference
    POST /release                                            lets every hanging charge continue

Behaviours:
    refuse          402, not charged
    error           500, not charged
    timeout-before  no response, not charged
    timeout-after   no response, charged
    hang            no response before the release; then charged, even if the client has hung up
"""

from __future__ import annotations

import argparse
import json
import select
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

BEHAVIOURS = {"refuse", "error", "timeout-before", "timeout-after", "hang"}


class Ledger:
    def __init__(self, *, honours_keys: bool) -> None:
        self.honours_keys = honours_keys
        self.lock = Lock()
        self.charges: list[dict[str, Any]] = []
        self.by_key: dict[str, dict[str, Any]] = {}
        self.running: set[str] = set()
        self.behaviours: dict[str, str] = {}
        self.released = Event()

    def claim(self, key: str | None, data: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Return the response to a key that is in use, or None: then charge."""
        with self.lock:
            if key is None:
                return None
            known = self.by_key.get(key)
            if known is None and key not in self.running:
                self.running.add(key)
                return None
        if known is None:
            return 409, {"error": "a charge with this key is running"}
        if (known["amount"], known["reference"]) != (data["amount"], data["reference"]):
            return 422, {"error": "this key was used for another charge"}
        return 200, known

    def release(self, key: str | None) -> None:
        with self.lock:
            self.running.discard(key or "")

    def behaviour(self, reference: str) -> str | None:
        with self.lock:
            return self.behaviours.pop(reference, None)

    def charge(self, data: dict[str, Any], key: str | None, caller: str | None) -> dict[str, Any]:
        with self.lock:
            charge = {
                "id": f"ch_{uuid4().hex[:12]}",  # no other charge has it, also after a restart
                "amount": data["amount"],
                "reference": data["reference"],
                "key": key,
                "caller": caller,
            }
            self.charges.append(charge)
            if key is not None:
                self.by_key[key] = charge
        return charge


class Handler(BaseHTTPRequestHandler):
    ledger: Ledger
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        wanted = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        with self.ledger.lock:
            found = [c for c in self.ledger.charges if all(c.get(name) == value for name, value in wanted.items())]
        self.respond(200, {"charges": found})

    def do_PUT(self) -> None:
        data = self.body()
        if data["behaviour"] not in BEHAVIOURS:
            self.respond(400, {"error": f"unknown behaviour; known are {sorted(BEHAVIOURS)}"})
            return
        with self.ledger.lock:
            self.ledger.behaviours[data["reference"]] = data["behaviour"]
        self.respond(200, data)

    def do_POST(self) -> None:
        data = self.body()
        if self.path == "/release":
            self.ledger.released.set()
            self.respond(200, {})
            return
        key = self.headers.get("Idempotency-Key") if self.ledger.honours_keys else None
        if (known := self.ledger.claim(key, data)) is not None:
            self.respond(*known)
            return
        try:
            self.charge(data, key)
        finally:
            self.ledger.release(key)

    def charge(self, data: dict[str, Any], key: str | None) -> None:
        match self.ledger.behaviour(data["reference"]):
            case "refuse":
                self.respond(402, {"error": "the card was declined"})
            case "error":
                self.respond(500, {"error": "the gateway is broken"})
            case "timeout-before":
                self.wait_until_the_client_is_gone()
            case "timeout-after":
                self.ledger.charge(data, key, self.headers.get("User-Agent"))
                self.wait_until_the_client_is_gone()
            case "hang":
                self.ledger.released.wait()
                self.respond(201, self.ledger.charge(data, key, self.headers.get("User-Agent")))
            case _:
                self.respond(201, self.ledger.charge(data, key, self.headers.get("User-Agent")))

    def wait_until_the_client_is_gone(self) -> None:
        select.select([self.connection], [], [])
        self.close_connection = True

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def respond(self, status: int, data: Any) -> None:
        content = json.dumps(data).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True  # the client has hung up

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--fd", type=int, help="File descriptor of a listening socket to use instead of a port.")
    parser.add_argument("--without-keys", action="store_true", help="Ignore idempotency keys.")
    options = parser.parse_args()
    Handler.ledger = Ledger(honours_keys=not options.without_keys)
    server = Server(("127.0.0.1", options.port), Handler, bind_and_activate=options.fd is None)
    if options.fd is not None:
        server.socket = socket.socket(fileno=options.fd)
    server.serve_forever()


if __name__ == "__main__":
    main()
