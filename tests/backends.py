"""Backends with real servers, each started when a test first asks for it, and a backend that fails on purpose."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import pytest

from django_idempotency.backends.memory import MemoryBackend
from tests.servers import eventually

MEMORY = {"BACKEND": "django_idempotency.backends.memory.MemoryBackend"}
FAULTY = {"BACKEND": "tests.backends.FaultyBackend"}
KINDS = ("memory", "redis", "valkey", "moto", "dynalite")
CREDENTIALS = {"region_name": "eu-west-1", "aws_access_key_id": "none", "aws_secret_access_key": "none"}
TABLE = {
    "TableName": "keys",
    "KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "name", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}
SERVERS = {kind: pytest.mark.server for kind in KINDS if kind != "memory"}
"""The mark of a test that starts a server."""
_started: dict[str, dict[str, Any]] = {}
_servers = ExitStack()


class FaultyBackend(MemoryBackend):
    """Fails or acts before or after the swaps that `plan` numbers from 0, and counts them."""

    plan: dict[int, Callable[[MemoryBackend, str], None]] = {}
    after: dict[int, Callable[[MemoryBackend, str], None]] = {}
    swaps = 0
    max_bytes = None

    def swap(self, name: str, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        kind, number = type(self), type(self).swaps
        kind.swaps += 1
        kind.plan.get(number, _nothing)(self, name)
        found = super().swap(name, old, new, seconds)
        kind.after.get(number, _nothing)(self, name)
        return found


def _nothing(backend: MemoryBackend, name: str) -> None:
    pass


def no_answer(backend: MemoryBackend, name: str) -> None:
    raise TimeoutError("no answer")


def evict(backend: MemoryBackend, name: str) -> None:
    backend.clear()


def configured(kind: str) -> dict[str, Any]:
    """The entry of `BACKENDS` for a server of this kind, which runs until the tests end; or the test is skipped."""
    if kind == "memory":
        return MEMORY
    if kind not in _started:
        _started[kind] = _servers.enter_context(STARTS[kind]())
    return _started[kind]


def stop_servers() -> None:
    _servers.close()
    _started.clear()


def redis_command(kind: str = "redis") -> list[str]:
    """The program of Debian; for Valkey, which it lacks, what VALKEY_SERVER says."""
    found = os.environ.get("VALKEY_SERVER") if kind == "valkey" else None
    found = found or shutil.which(f"{kind}-server")
    if found is None:
        how = (
            "set VALKEY_SERVER, see tests/databases/clusters/newest_suite.sh"
            if kind == "valkey"
            else "apt install redis-server"
        )
        pytest.skip(f"NOT RUN: {kind}-server is missing: {how}")
    return shlex.split(found)


@contextmanager
def redis_server(*options: str, kind: str = "redis", port: int | None = None) -> Iterator[tuple[str, Any]]:
    """A server of its own on loopback; gives its URL and its process."""
    import redis

    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="keys-") as folder:
        where = ("--dir", folder, "--bind", "127.0.0.1", "--port", str(port), "--save", "")
        command = [*redis_command(kind), *where, "--repl-diskless-sync-delay", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"redis://127.0.0.1:{port}"

        def answers() -> bool:
            assert process.poll() is None, f"{kind} ended"
            with suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
                return bool(client.ping())
            return False

        try:
            eventually(f"{kind} to answer", answers)
            yield url, process
        finally:
            process.kill()
            process.wait()


@contextmanager
def _redis(kind: str) -> Iterator[dict[str, Any]]:
    with redis_server("--appendonly", "yes", "--maxmemory-policy", "noeviction", kind=kind) as (url, _):
        yield in_redis(url)


def in_redis(url: str, **options: Any) -> dict[str, Any]:
    return {"BACKEND": "django_idempotency.backends.redis.RedisBackend", "OPTIONS": {"url": url, **options}}


@contextmanager
def _moto() -> Iterator[dict[str, Any]]:
    if find_spec("moto") is None:
        pytest.skip("NOT RUN: moto is missing: it is in the dependency group `backends`")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield _with_table(server.get_host_and_port()[1])
    finally:
        server.stop()


@contextmanager
def _dynalite() -> Iterator[dict[str, Any]]:
    found = os.environ.get("DYNALITE") or shutil.which("dynalite")
    if found is None or find_spec("boto3") is None:
        pytest.skip("NOT RUN: dynalite or boto3 is missing: npm install dynalite, and set DYNALITE to its program")
    port = free_port()
    command = [found, "--port", str(port), "--createTableMs", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        eventually("dynalite to answer", answers)
        yield _with_table(port)
    finally:
        process.kill()
        process.wait()


def _with_table(port: int) -> dict[str, Any]:
    import boto3

    where = {"endpoint_url": f"http://127.0.0.1:{port}", **CREDENTIALS}
    client = boto3.client("dynamodb", **where)  # with the patience that the first request to an emulator takes
    client.create_table(**TABLE)
    eventually("the table", lambda: client.describe_table(TableName="keys")["Table"]["TableStatus"] == "ACTIVE")
    return {"BACKEND": "django_idempotency.backends.dynamodb.DynamoDBBackend", "OPTIONS": {"table": "keys", **where}}


STARTS: dict[str, Callable[[], Any]] = {
    "redis": lambda: _redis("redis"),
    "valkey": lambda: _redis("valkey"),
    "moto": _moto,
    "dynalite": _dynalite,
}


def free_port(highest: int = 65535) -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        if port <= highest:
            return port
