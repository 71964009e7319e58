"""The PgBouncer of Debian's newest suite. The machine's own is in tests/interrupts/test_poolers.py."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pooler import THREADS, duplicates_make_one_order, pgbouncer
from tests.servers import gunicorn

SCRIPT = Path(__file__).with_name("newest_suite.sh")
POOL = 3
PREPARING = {"SERVER_SIDE_BINDING": "yes", "SERVER_PREPARE_THRESHOLD": "0"}
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("CLUSTERS" not in os.environ, reason="NOT RUN: needs CLUSTERS=1, as in tox run -e clusters"),
]


@pytest.fixture(scope="module")
def newest() -> Iterator[list[str]]:
    """The command that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # it runs as another user than root
        run = ["bash", str(SCRIPT), "pgbouncer", "pgbouncer", folder]
        unpacked = subprocess.run(run, capture_output=True, text=True, timeout=100)
        if unpacked.returncode:
            pytest.skip(f"NOT RUN: today's pgbouncer cannot be had: {unpacked.stderr.strip()[-200:]}")
        yield unpacked.stdout.split()


@pytest.mark.parametrize("environment", [{}, PREPARING], ids=["text", "prepared"])
def test_duplicates_make_one_order(
    newest: list[str], in_threads: Callable[..., list[Any]], key: str, environment: dict[str, str]
) -> None:
    """Pooling by transaction, with fewer connections than requests. With prepared statements, the pooler keeps some."""
    through = pgbouncer(POOL, command=newest, prepared_statements=100)
    with through as pooler, gunicorn("--threads", str(THREADS), **pooler, **environment) as url:
        duplicates_make_one_order(url, key, in_threads)
