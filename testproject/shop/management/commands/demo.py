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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
from django.conf import settings
from django.contrib.auth.models import User
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


LOSERS_DEADLINE = 5
"""Seconds for duplicates to get their answers, which takes milliseconds."""
UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=0)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `orders` are counted in the database; `as_told`: the answers were as promised."""

    what: str
    answers: str
    orders: int
    expected: int
    as_told: bool

    @property
    def kept(self) -> bool:
        return self.as_told and self.orders == self.expected

    def cells(self) -> tuple[str, ...]:
        return self.what, self.answers, str(self.orders), str(self.expected), "ok" if self.kept else "BROKEN"


class Command(BaseCommand):
    help = "Start the shop on real server processes, break things, and count the orders."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--serve", action="store_true", help="Leave the server and the admin up until Ctrl-C.")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("The demo needs PostgreSQL. Unset DATABASE_URL to use the embedded one.")
        # So that finally blocks and atexit run: nothing may stay behind.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        with fresh_database():
            token = self._accounts()
            with serving() as url, httpx.Client(base_url=url, timeout=DEADLINE, limits=UNLIMITED) as client:
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
                    self.stdout.flush()
                    wait_for_interrupt()
        if not all(row.kept for row in rows):
            raise CommandError("A promise was broken.")

    def _accounts(self) -> str:
        user = User.objects.create_superuser("demo", password="demo")
        return str(Token.objects.create(user=user))

    def _storm(self, client: httpx.Client, path: str, what: str, *, token: str | None = None) -> Row:
        """All at once; the winner is held in the middle of its work until the losers have their answers."""
        headers = {"Idempotency-Key": str(uuid4()), **({"Authorization": f"Token {token}"} if token else {})}
        held = {**headers, HEADER: str(PAUSE)}
        with counting() as orders:
            with ThreadPoolExecutor(STORM) as pool:
                with held_in_the_middle():
                    sent = [pool.submit(post, client, path, held) for _ in range(STORM)]
                    losers_answered(sent)
                answers = [future.result(DEADLINE) for future in sent]
            retries = at_once(STORM, lambda: post(client, path, headers))
        winners = [answer for answer in answers if answer.status_code == 201]
        losers = [answer for answer in answers if answer.status_code == 409]
        same = len(winners) == 1 and all(is_replay_of(winners[0], retry) for retry in retries)
        return Row(
            f"{STORM} duplicates at once, {what}",
            f"{tally(answers)}; {STORM} retries: {tally(retries)}, {bytes_said(same)}",
            orders(),
            1,
            same and len(losers) == STORM - 1,
        )

    def _hang_up(self, client: httpx.Client, url: str) -> Row:
        headers = {"Idempotency-Key": str(uuid4())}
        with counting() as orders:
            with held_in_the_middle() as worker:
                line = send_and_keep_open(url, {**headers, "Content-Type": "application/json", HEADER: str(PAUSE)})
                worker()
                line.close()
            retries = [until_final(client, headers) for _ in range(2)]
        same = all(retry.status_code == 201 and is_replay_of(retries[0], retry) for retry in retries)
        answers = f"nobody reads the first; 2 retries: {tally(retries)}, {bytes_said(same)}"
        return Row("client hangs up before the answer, retries", answers, orders(), 1, same)

    def _kill(self, client: httpx.Client) -> Row:
        headers = {"Idempotency-Key": str(uuid4())}
        with counting() as orders, ThreadPoolExecutor(1) as pool:
            with held_in_the_middle() as worker:
                lost = pool.submit(post, client, "/orders/", {**headers, HEADER: str(PAUSE)})
                os.kill(worker(), signal.SIGKILL)
                died = isinstance(lost.exception(DEADLINE), httpx.TransportError)
            left = orders()
            answer = until_final(client, headers)
        ran = answer.status_code == 201 and answer.headers.get("Idempotency-Replayed") == "false"
        return Row(
            "kill -9 of the worker in the middle, retry",
            f"{'connection lost' if died else 'answered'}, {left} orders left; retry: {tally([answer])}",
            orders(),
            1,
            died and ran and left == 0,
        )

    def _unprotected(self, client: httpx.Client) -> Row:
        headers = {"Idempotency-Key": str(uuid4())}
        with counting() as orders:
            answers = at_once(STORM, lambda: post(client, "/unprotected/orders/", headers))
        return Row(f"{STORM} duplicates at once, NOT protected", tally(answers), orders(), STORM, True)

    def _table(self, rows: list[Row]) -> None:
        head = ("what happened", "answers", "orders", "expected", "")
        lines = [head, *(row.cells() for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        for line in lines:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def post(client: httpx.Client, path: str, headers: dict[str, str]) -> httpx.Response:
    return client.post(path, json={"item": "a book", "quantity": 1}, headers=headers)


def tally(answers: list[httpx.Response]) -> str:
    counts = Counter(answer.status_code for answer in answers)
    return ", ".join(f"{n} x {status}" for status, n in sorted(counts.items()))


def is_replay_of(first: httpx.Response, answer: httpx.Response) -> bool:
    replayed = answer.headers.get("Idempotency-Replayed") == "true"
    return replayed and (answer.status_code, answer.content) == (first.status_code, first.content)


def bytes_said(same: bool) -> str:
    return "same bytes" if same else "OTHER BYTES"


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


def losers_answered(sent: list[Future[httpx.Response]]) -> None:
    """Wait until all but one have their answer; without protection they never do, and the table tells."""
    deadline = time.monotonic() + LOSERS_DEADLINE
    while sum(future.done() for future in sent) < STORM - 1 and time.monotonic() < deadline:
        time.sleep(0.02)


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
def fresh_database() -> Iterator[None]:
    """A database of the demo's own, migrated, and dropped afterwards: whatever DATABASE_URL holds stays as it is."""
    original = connection.settings_dict["NAME"]
    connection.settings_dict["TEST"]["NAME"] = f"shop_demo_{os.getpid()}"
    os.environ["SHOP_DATABASE"] = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        yield
    finally:
        connection.creation.destroy_test_db(original, verbosity=0)


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
    with tempfile.TemporaryFile() as log, socket.create_server(("127.0.0.1", 0), backlog=2 * STORM) as listening:
        port = listening.getsockname()[1]
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "config.wsgi", "--bind", f"fd://{listening.fileno()}"),
                *("--workers", "4", "--threads", "16", "--timeout", "120", "--graceful-timeout", "5"),
                *("--chdir", str(settings.BASE_DIR)),
            ],
            pass_fds=[listening.fileno()],
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
                process.wait()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise CommandError(f"The server ended with status {process.returncode}.")
    try:
        return httpx.get(f"{url}/orders/", timeout=1).status_code == 405
    except httpx.TransportError:
        return False


def wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        return
