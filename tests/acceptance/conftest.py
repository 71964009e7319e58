from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.databases import embedded_postgresql
from tests.servers import DEADLINE, PAUSE, eventually

SHOP = Path(__file__).resolve().parents[2] / "testproject"
SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw=="


@dataclass(frozen=True)
class RunningShop:
    """The shop on gunicorn, and a look into its database."""

    url: str
    port: int
    dsn: str

    def one(self, sql: str, *params: Any) -> Any:
        with psycopg.connect(self.dsn, autocommit=True) as database:
            row = database.execute(sql, params).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]

    @contextmanager
    def holding(self) -> Iterator[Callable[[], None]]:
        """Hold views that ask for it in the middle of their work (`X-Demo-Pause`); gives what lets them go."""
        with psycopg.connect(self.dsn, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", [PAUSE])
            yield holder.close

    def held(self) -> bool:
        return bool(
            self.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted", PAUSE)
        )


@pytest.fixture(scope="module")
def shop() -> Iterator[RunningShop]:
    pytest.importorskip("rest_framework")
    pytest.importorskip("drf_spectacular")
    url = embedded_postgresql()
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONPATH": str(SHOP.parent),
        "WEBHOOK_SECRET": SECRET,
        "DEMO": "1",
    }
    subprocess.run(
        [sys.executable, str(SHOP / "manage.py"), "migrate", "--verbosity", "0"],
        env=environment,
        check=True,
        timeout=60,
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "config.wsgi", "--bind", f"fd://{listener.fileno()}"),
            *("--workers", "4", "--graceful-timeout", "1", "--chdir", str(SHOP)),
        ],
        env=environment,
        pass_fds=[listener.fileno()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    port = listener.getsockname()[1]
    listener.close()

    def answers() -> bool:
        assert process.poll() is None, "the shop ended"
        try:
            return httpx.get(f"http://127.0.0.1:{port}/orders/", timeout=DEADLINE).status_code == 405
        except httpx.TransportError:
            return False

    try:
        eventually("the shop's first answer", answers)
        yield RunningShop(f"http://127.0.0.1:{port}", port, url)
    finally:
        process.terminate()
        process.wait(DEADLINE)
