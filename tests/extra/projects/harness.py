"""A Django project with a database of its own, and servers that run the project with and without this package."""

from __future__ import annotations

import html
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
from django.db import connection

from tests.extra.projects.faults import PAUSE
from tests.servers import PLAIN, eventually, serving

MIGRATION = 300
"""Seconds for all migrations of a project, on a machine that is busy."""
GUNICORN = ("gunicorn", "django.core.wsgi:get_wsgi_application()", "--bind", "fd://{fd}", "--timeout", "120")
WORKERS = ("--workers", "2", "--threads", "10", "--keep-alive", "60")
"""Two, so that one is there while the other is killed."""


@dataclass
class Project:
    """One folder beside this module: `settings.py`, `urls.py`, and what they need."""

    name: str
    ready: str
    """A path that answers 200 or 405 to GET."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def database(self) -> str:
        return f"test_idempotency_{self.name}"

    @contextmanager
    def migrated(self, seed: str = "") -> Iterator[Project]:
        """With a new database, in which the project's code `seed` has run."""
        with connection._nodb_cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {self.database}")
        try:
            self.manage("migrate", "--run-syncdb", "--verbosity", "0")
            self.manage("shell", "--verbosity", "0", "--command", seed)
            yield self
        finally:
            with connection._nodb_cursor() as cursor:  # type: ignore[attr-defined]
                cursor.execute(f"DROP DATABASE {self.database} WITH (FORCE)")

    def variables(self, *, protected: bool = True) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": f"tests.extra.projects.{self.name}.settings",
            "SERVER_DATABASE": self.database,
            **({"PROJECT_PROTECTED": "1"} if protected else {}),
            **self.environment,
        }

    def manage(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "django", *arguments]
        done = subprocess.run(command, env=self.variables(), capture_output=True, text=True, timeout=MIGRATION)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def served(self, *, protected: bool) -> Iterator[Site]:
        with serving(*GUNICORN, *WORKERS, env=self.variables(protected=protected), path=self.ready) as url:
            yield Site(self, url, protected)

    def login(self) -> dict[str, Any]:
        settings = connection.settings_dict
        login = {name: settings[name.upper()] or None for name in ("host", "port", "user", "password")}
        return {**login, "dbname": self.database, "autocommit": True}

    def sql(self, query: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(**self.login()) as database:
            cursor = database.execute(query, parameters)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def count(self, table: str, condition: str = "TRUE", *parameters: Any) -> int:
        return int(self.sql(f"SELECT count(*) FROM {table} WHERE {condition}", *parameters)[0][0])


@dataclass
class Site:
    project: Project
    url: str
    protected: bool

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, **{**PLAIN, **options})

    def counted(self, what: str, number: int, expected: int, harm: int) -> None:
        """Compare a number with the one of a protected project, or of a project without protection, and print it."""
        print(f"counted: {self.project.name}, {'protected' if self.protected else 'NOT protected'}: {what}: {number}")
        assert number == (expected if self.protected else harm)

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Hold the requests at their pause; gives a function that waits until so many are there."""
        waiting = (
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
            "WHERE datname = current_database() AND locktype = 'advisory' AND objid = %s AND NOT granted"
        )
        with psycopg.connect(**self.project.login()) as database:
            database.execute("SELECT pg_advisory_lock(%s)", [PAUSE])

            def paused() -> int:
                return int(database.execute(waiting, [PAUSE]).fetchone()[0])

            yield lambda number: eventually(f"{number} requests at the pause", lambda: paused() == number)

    def double_click(self, click: Callable[[], httpx.Response]) -> list[httpx.Response]:
        """Without protection, both requests are at the pause before the first one goes on."""
        with ThreadPoolExecutor(2) as pool:
            with self.holding() as paused:
                clicks = [pool.submit(click) for _ in range(2)]
                paused(1 if self.protected else 2)
            return [each.result() for each in clicks]


def hidden_fields(page: httpx.Response) -> dict[str, str]:
    """What a browser sends with the form beside the visitor's own words."""
    inputs = [dict(re.findall(r'(\w+)="([^"]*)"', tag)) for tag in re.findall("<input [^>]*>", page.text)]
    return {each["name"]: html.unescape(each.get("value", "")) for each in inputs if each.get("type") == "hidden"}


def hang_up(request: httpx.Request, moment: Callable[[], None]) -> None:
    """Send this request, wait for the moment, and close the connection without having read."""
    headers = b"".join(b"%s: %s\r\n" % header for header in request.headers.raw)
    with socket.create_connection((request.url.host, request.url.port or 80)) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\n%s\r\n%s" % (request.url.raw_path, headers, request.content))
        moment()


def dies(send: Callable[[], Any]) -> None:
    """Send a request whose worker kills itself."""
    try:
        answer = send()
    except httpx.TransportError:
        return
    raise AssertionError(f"the worker has answered: {answer}")


def at_once(number: int, send: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(send, range(number)))
