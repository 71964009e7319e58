"""Two releases of the package as processes on one database, and customers who send each request to either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.servers import DEADLINE, eventually, server_environment, serving

ROOT = Path(__file__).parents[3]
PREVIOUS = "439c0c07"
"""The commit of 0.4.0."""
WORKERS = 8
AGAIN = {"in-progress", "busy"}
"""The codes after which a client sends the same request again by itself."""


def previous_release(folder: Path) -> Path:
    """The code of 0.4.0 in this folder, out of the history."""
    made = subprocess.run(["git", "-C", ROOT, "archive", PREVIOUS, "django_idempotency"], capture_output=True)
    if made.returncode:
        pytest.skip(f"NOT RUN: the code of 0.4.0 is in the history, which isn't here: {made.stderr.decode().strip()}")
    folder.mkdir(parents=True, exist_ok=True)
    # Debian's Python 3.11.2 has no filter for its own `tarfile`, and newer ones warn without one.
    subprocess.run(["tar", "-x", "-C", folder], input=made.stdout, check=True)
    return folder


@dataclass(frozen=True)
class Release:
    """A release, by the folder in which its package is, and how both are configured."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def _environment(self, **more: str) -> dict[str, str]:
        settings = {"DJANGO_SETTINGS_MODULE": "tests.databases.upgrades.settings", "PYTHONPATH": str(ROOT)}
        settings["SHOP_URLS"] = "tests.databases.upgrades.shop"
        return server_environment(**{**settings, **self.environment, **more})

    def manage(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "django", *arguments]
        options: dict[str, Any] = {"env": self._environment(**environment), "cwd": self.folder}
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, **options)

    @contextmanager
    def serving(self, workers: int = WORKERS) -> Iterator[httpx.Client]:
        command = ("gunicorn", "tests.databases.upgrades.wsgi", "--preload", "--bind", "fd://{fd}", "--timeout", "120")
        more = ("--workers", str(workers), "--graceful-timeout", "10")
        with (
            serving(*command, *more, env=self._environment(), cwd=self.folder) as url,
            httpx.Client(base_url=url, timeout=5 * DEADLINE) as client,
        ):
            assert client.get("/read").text == str(self.folder)
            yield client


@dataclass(frozen=True)
class Answer:
    status: int
    code: str | None
    replayed: bool
    content: bytes

    @classmethod
    def of(cls, response: httpx.Response) -> Answer:
        is_problem = response.headers.get("Content-Type") == "application/problem+json"
        code = json.loads(response.content)["code"] if is_problem else None
        # A response that wasn't stored is told apart from every first one as well.
        replayed = response.headers.get("Idempotency-Replayed") == "true" or code == "response-not-stored"
        return cls(response.status_code, code, replayed, response.content)

    def __str__(self) -> str:
        return f"{self.status} {self.code} {self.content[:300]!r}"


@dataclass(frozen=True)
class Order:
    """One request of a customer."""

    path: str
    key: str = field(default_factory=lambda: str(uuid4()))
    body: bytes = b'{"a": 1, "of": ["\xc3\xbc", 10.5, null]}'

    def send(self, to: httpx.Client, body: bytes | None = None, **headers: str) -> Answer:
        always = {"Idempotency-Key": self.key, "X-Reference": self.key, "Content-Type": "application/json"}
        return Answer.of(to.post(self.path, content=body or self.body, headers={**always, **headers}))

    def until_final(self, to: httpx.Client) -> Answer:
        """Send it again after what a client may meet: a dead worker, a conflict, a busy store. Errors are final."""
        heard: Any = None

        def attempt() -> Answer | None:
            nonlocal heard
            heard = None
            with suppress(httpx.TransportError):
                heard = self.send(to)
            return None if heard is None or heard.code in AGAIN else heard

        try:
            answer: Answer = eventually(f"a final answer of {self.path}", attempt, pause=0.05)
        except AssertionError as error:
            error.add_note(str(heard))
            raise
        return answer

    def decide(self, to: httpx.Client, decision: str) -> None:
        to.post("/decide", headers={"Idempotency-Key": self.key, "X-Decision": decision}).raise_for_status()


def die_of(command: subprocess.CompletedProcess[str]) -> None:
    """The command was killed where it should be."""
    assert command.returncode == -signal.SIGKILL, command.stderr


def succeed(command: subprocess.CompletedProcess[str]) -> None:
    assert command.returncode == 0, command.stderr + command.stdout


def folder_of_this_release() -> Path:
    import django_idempotency

    return Path(os.path.abspath(django_idempotency.__file__)).parents[1]
