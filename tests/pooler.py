"""pgbouncer, in front of the tests' database."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
from django.db import connection

from django_idempotency.models import IdempotencyKey
from tests.servers import http_post, process
from tests.shopapp.models import Order

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PORT = 6432
THREADS = 12
"""Requests at once: more than a pool has connections."""


@contextmanager
def pgbouncer(
    pool_size: int = 20,
    mode: str = "transaction",
    *,
    command: Sequence[str] = (),
    prepared_statements: int = 0,
    query_wait_timeout: int = 120,
) -> Iterator[dict[str, str]]:
    """Give the environment with which the test server goes through it.

    Args:
        command: another pgbouncer than the machine's own.
        prepared_statements: how many the pooler keeps for each connection. From release 1.21 on.
        query_wait_timeout: seconds that a client waits for a connection to the server.
    """
    if not command:
        assert PGBOUNCER
        command = [PGBOUNCER]
    settings = connection.settings_dict
    host, port = settings["HOST"] or "localhost", settings["PORT"] or "5432"
    login = f"user={settings['USER']}" + (f" password={settings['PASSWORD']}" if settings["PASSWORD"] else "")
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "pgbouncer.ini")
        configuration.write_text(
            f"[databases]\n* = host={host} port={port} {login}\n"
            f"[pgbouncer]\nunix_socket_dir = {folder}\nlisten_port = {PORT}\nlisten_addr =\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = {pool_size}\nmax_client_conn = 1000\n"
            f"query_wait_timeout = {query_wait_timeout}\nignore_startup_parameters = extra_float_digits,options\n"
            + (f"max_prepared_statements = {prepared_statements}\n" if prepared_statements else "")
        )
        # It refuses to run as root; whoever runs the database can also reach its socket.
        user = os.stat(host).st_uid if host.startswith("/") and os.getuid() == 0 else None
        os.chmod(folder, 0o777)
        user = user or (65534 if os.getuid() == 0 else None)
        with process(*command, configuration, ready=lambda: reaches_the_server(folder), user=user):
            yield {"SERVER_HOST": folder, "SERVER_PORT": str(PORT)}


def reaches_the_server(folder: str) -> bool:
    """Whether a client of the pooler that has its socket here reaches the server."""
    name = connection.settings_dict["NAME"]
    try:
        with psycopg.connect(host=folder, port=PORT, dbname=name, user="anyone", autocommit=True) as pooled:
            return pooled.execute("SELECT true").fetchone() == (True,)
    except psycopg.OperationalError:
        return False


def duplicates_make_one_order(url: str, key: str, in_threads: Callable[..., list[Any]], path: str = "/plain") -> None:
    answers = in_threads(THREADS, lambda number: send(url, key, path))
    replay = send(url, key, path)
    assert {answer.status_code for answer in answers} <= {201, 409}
    told = Counter(answer.headers["Idempotency-Replayed"] for answer in answers if answer.status_code == 201)
    assert told["false"] == 1
    assert (replay.status_code, replay.headers["Idempotency-Replayed"]) == (201, "true")
    assert Order.objects.count() == 1
    assert IdempotencyKey.objects.get().status == "completed"


def send(url: str, key: str, path: str = "/plain") -> httpx.Response:
    """Place an order on the test server. Its reference is the key."""
    headers = {"Idempotency-Key": key, "X-Reference": key}
    return http_post(f"{url}{path}", json={"a": 1}, headers=headers)
