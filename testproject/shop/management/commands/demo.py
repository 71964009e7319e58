from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from rest_framework.authtoken.models import Token

from shop.models import Order
from shop.pause import HEADER

STORM = 50
PAUSE = 20261120
"""The advisory lock that holds a view in the middle of its work."""
DEADLINE = 30
"""Seconds until something that should have happened counts as broken."""


class Command(BaseCommand):
    help = "Start the shop on real server processes, break things, and count the orders."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--serve", action="store_true", help="Leave the server and the admin up until Ctrl-C.")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("The demo needs PostgreSQL. Unset DATABASE_URL to use the embedded one.")
        call_command("migrate", verbosity=0)
        token = self._accounts()
        with serving() as url, httpx.Client(base_url=url, timeout=DEADLINE) as client:
            rows = [
                self._storm(client, "/orders/", "plain Django view"),
                self._storm(client, "/api/orders/", "REST framework view", token=token),
                self._hang_up(client, url),
                self._kill(client),
                self._unprotected(client),
            ]
            self._table(rows)
            if options["serve"]:
                self.stdout.write(f"\nServing on {url}, admin at {url}/admin/ (demo / demo). Ctrl-C stops.")
                wait_for_interrupt()
        if not all(kept for *_, kept in rows):
            raise CommandError("A promise was broken.")

    def _accounts(self) -> str:
        user, _ = User.objects.update_or_create(username="demo", defaults={"is_staff": True, "is_superuser": True})
        user.set_password("demo")
        user.save()
        return str(Token.objects.get_or_create(user=user)[0])

    def _storm(self, client: httpx.Client, path: str, what: str, *, token: str | None = None) -> tuple[Any, ...]:
        headers = {"Idempotency-Key": str(uuid4()), **({"Authorization": f"Token {token}"} if token else {})}
        with counting() as orders:
            answers = at_once(STORM, lambda: post(client, path, headers))
            final = {post(client, path, headers).content for _ in range(3)}
            first = {answer.content for answer in answers if answer.status_code == 201}
        statuses = ", ".join(f"{n} × {status}" for status, n in sorted(Counter(a.status_code for a in answers).items()))
        kept = orders() == 1 and first == final and len(final) == 1
        return f"{STORM} duplicates at once, {what}", f"{statuses}; retries: same bytes", orders(), 1, kept

    def _hang_up(self, client: httpx.Client, url: str) -> tuple[Any, ...]:
        headers = {"Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}
        with counting() as orders:
            with held_in_the_middle() as worker:
                line = send_and_keep_open(url, {**headers, HEADER: str(PAUSE)})
                worker()
                line.close()
            retries = [until_final(client, headers) for _ in range(2)]
        same = retries[0].content == retries[1].content and retries[0].status_code == 201
        return (
            "client hangs up before the answer, retries",
            "201, same bytes again",
            orders(),
            1,
            orders() == 1 and same,
        )

    def _kill(self, client: httpx.Client) -> tuple[Any, ...]:
        headers = {"Idempotency-Key": str(uuid4())}
        with counting() as orders, ThreadPoolExecutor(1) as pool:
            with held_in_the_middle() as worker:
                lost = pool.submit(post, client, "/orders/", {**headers, HEADER: str(PAUSE)})
                os.kill(worker(), signal.SIGKILL)
                died = isinstance(lost.exception(DEADLINE), httpx.TransportError)
            answer = until_final(client, headers)
        replayed = answer.headers["Idempotency-Replayed"]
        kept = orders() == 1 and died and answer.status_code == 201 and replayed == "false"
        return "kill -9 of the worker in the middle, retry", "connection lost; then 201", orders(), 1, kept

    def _unprotected(self, client: httpx.Client) -> tuple[Any, ...]:
        headers = {"Idempotency-Key": str(uuid4())}
        with counting() as orders:
            at_once(STORM, lambda: post(client, "/unprotected/orders/", headers))
        return f"{STORM} duplicates at once, NOT protected", f"{STORM} × 201", orders(), STORM, orders() == STORM

    def _table(self, rows: list[tuple[Any, ...]]) -> None:
        head = ("what happened", "answers", "orders", "expected", "")
        lines = [head, *((*(str(cell) for cell in row[:-1]), "ok" if row[-1] else "BROKEN") for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        for line in lines:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def post(client: httpx.Client, path: str, headers: dict[str, str]) -> httpx.Response:
    return client.post(path, json={"item": "a book", "quantity": 1}, headers=headers)


def at_once(n: int, send: Callable[[], httpx.Response]) -> list[httpx.Response]:
    with ThreadPoolExecutor(n) as pool:
        return [future.result(DEADLINE) for future in [pool.submit(send) for _ in range(n)]]


def eventually(what: str, probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise CommandError(f"Waited {DEADLINE} seconds in vain: {what}.")
        time.sleep(0.02)
    return value


def until_final(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    """Retry as a client should: the same request, until the answer is no conflict."""

    def probe() -> httpx.Response | None:
        try:
            answer = post(client, "/orders/", headers)
        except httpx.TransportError:
            return None
        return None if answer.status_code == 409 else answer

    answer: httpx.Response = eventually("a final answer", probe)
    return answer


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """How many orders came to be since."""
    before = Order.objects.count()
    yield lambda: Order.objects.count() - before


@contextmanager
def held_in_the_middle() -> Iterator[Callable[[], int]]:
    """Hold views that ask for it after their write; gives the process id of the worker that is held."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
        try:
            yield lambda: eventually("a worker in the middle of its work", _held_worker)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [PAUSE])


def _held_worker() -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid) "
            "WHERE locktype = 'advisory' AND objid = %s AND NOT granted",
            [PAUSE],
        )
        row = cursor.fetchone()
    return int(row[0].removeprefix("shop-")) if row else None


def send_and_keep_open(url: str, headers: dict[str, str]) -> socket.socket:
    """Send a request on a bare socket and do not read the answer."""
    target = httpx.URL(url)
    body = b'{"item":"a book","quantity":1}'
    lines = [f"Host: {target.host}", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    line = socket.create_connection((target.host, target.port or 80), timeout=DEADLINE)
    line.sendall("\r\n".join(["POST /orders/ HTTP/1.1", *lines, "", ""]).encode() + body)
    return line


@contextmanager
def serving() -> Iterator[str]:
    """The shop on gunicorn: four worker processes on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "config.wsgi", "--bind", f"127.0.0.1:{port}"),
                *(
                    "--workers",
                    "4",
                    "--threads",
                    "16",
                    "--timeout",
                    "120",
                    "--chdir",
                    os.path.dirname(sys.argv[0]) or ".",
                ),
            ],
            env={**os.environ, "DEMO": "1", "DJANGO_SETTINGS_MODULE": "config.settings"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            eventually("the server's first answer", lambda: _answers(url, process))
            yield url
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise CommandError(f"The server ended with status {process.returncode}.")
    try:
        return httpx.get(f"{url}/orders/").status_code == 405
    except httpx.TransportError:
        return False


def wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        return
