"""nginx and HAProxy from Debian, told to repeat a request to the next server: processes on a socket in a folder."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.servers import DEADLINE, process

NGINX = """
{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/unused1;
    uwsgi_temp_path {folder}/unused2;
    scgi_temp_path {folder}/unused3;
    upstream shop {{
{servers}
    }}
    server {{
        listen unix:{folder}/socket;
        location / {{
            proxy_pass http://shop;
            proxy_next_upstream error timeout http_502 http_503 non_idempotent;
            proxy_read_timeout {timeout}s;
        }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server {timeout}s
    retries 3
    option redispatch 1
    retry-on all-retryable-errors
    # Without this, a request whose body comes in a second packet is not repeated.
    option http-buffer-request
listen shop
    bind {folder}/socket
{servers}
"""


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def proxy(name: str, servers: Sequence[str], timeout: int) -> Iterator[httpx.Client]:
    """A proxy that waits this many seconds for an answer; gives a client that sends through it."""
    addresses = [urlsplit(server).netloc for server in servers]
    with tempfile.TemporaryDirectory(prefix="idempotency-") as folder:
        configuration = Path(folder, "configuration")
        path = program(name)
        assert path
        if name == "nginx":
            listed = "\n".join(f"        server {address} max_fails=0;" for address in addresses)
            user = "user root;" if os.getuid() == 0 else ""
            text = NGINX.format(folder=folder, servers=listed, timeout=timeout, user=user)
            command = [path, "-p", folder, "-e", f"{folder}/log", "-c", str(configuration)]
        else:
            listed = "\n".join(f"    server shop{number} {address}" for number, address in enumerate(addresses))
            text = HAPROXY.format(folder=folder, servers=listed, timeout=timeout)
            command = [path, "-db", "-q", "-f", str(configuration)]
        configuration.write_text(text)
        transport = httpx.HTTPTransport(uds=f"{folder}/socket")
        with (
            process(*command, ready=lambda: _listens(f"{folder}/socket")),
            httpx.Client(base_url="http://shop", transport=transport, timeout=DEADLINE) as client,
        ):
            yield client


def _listens(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0
