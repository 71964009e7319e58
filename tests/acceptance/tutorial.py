"""A reader who follows docs/tutorial.md, in an empty folder, with a real server and real kill -9."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers import process

ROOT = Path(__file__).resolve().parents[2]
INSTALLATION = 240
"""Seconds until pip has fetched Django."""


@dataclass
class Reader:
    """A reader who types what the page says. Only the port is different."""

    folder: Path
    port: int
    servers: ExitStack

    def write(self, name: str, place: str, code: str) -> None:
        with (self.folder / name).open("a" if place else "w") as file:
            file.write(code)

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run the command; its output and errors together, as a terminal shows them."""
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALLATION,
            check=False,
        )

    def serving(self, command: str) -> AbstractContextManager[Any]:
        shell = ("bash", "-c", f"exec {command}")
        return process(*shell, ready=self.is_served, cwd=self.folder, env=self.environment())

    def is_served(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def environment(self) -> dict[str, str]:
        """Nothing of the environment that the tests run in, but pip's configuration."""
        ours = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        # Lines come in the order in which a terminal would show them.
        return {**inherited, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """An empty folder beside a clone."""
    if shutil.which("curl") is None:
        pytest.skip("the tutorial needs curl")
    (tmp_path / "django-idempotency").symlink_to(ROOT)  # the reader's clone
    folder = tmp_path / "tutorial"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with ExitStack() as servers:
        yield Reader(folder, port, servers)


def follow_tutorial(reader: Reader, page: str) -> None:
    page = page.replace("localhost:8000", f"localhost:{reader.port}")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    for language, text in blocks:
        if language == "python":
            reader.write(*re.fullmatch(r"# (\S+)( \(at the end\))?\n(.*)", text, re.DOTALL).groups())
        else:
            assert language == "console"
            for step in re.split(r"(?m)^\$ ", text)[1:]:
                follow(reader, *step.splitlines())


def follow(reader: Reader, command: str, *expected: str) -> None:
    """Type it. What the page shows is the output, `…` being any lines; where it shows nothing, success will do."""
    if "gunicorn config" in command:
        reader.servers.enter_context(reader.serving(command))
        return
    done = reader.type(command)
    shown = r"\s*\n".join(".*?" if line == "…" else re.escape(line) for line in expected)
    right = re.fullmatch(rf"(?s)\s*{shown}\s*", done.stdout) if expected else done.returncode == 0
    assert right, f"$ {command}\n{done.stdout}"
