"""`manage.py idempotency_metrics`: metrics from a process that answers while all workers are busy."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import urlopen
from wsgiref.simple_server import make_server

import pytest
from django.core.management import CommandError, call_command

from django_idempotency.management.commands import idempotency_metrics
from tests.expired import make_leased

prometheus_client = pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.django_db(transaction=True)


class Scraper(io.StringIO):
    """The output of the command. As soon as it names its address, a thread reads the address and stops the command."""

    metrics, thread = "", Thread()

    def write(self, text: str) -> int:
        if found := re.search(r"http://\S+", text):
            self.thread = Thread(target=self.scrape, args=(found[0],))
            self.thread.start()
        return super().write(text)

    def scrape(self, address: str) -> None:
        try:
            with urlopen(address, timeout=30) as answer:
                self.metrics = answer.read().decode()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)


def served(**options: Any) -> Scraper:
    out = Scraper()
    call_command("idempotency_metrics", port=0, stdout=out, **options)
    out.thread.join(30)
    return out


def test_it_serves_the_gauges_until_a_signal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By default of the write alias, and on this host only."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    make_leased("k", "failed", doubt=True)
    out = served()
    assert re.fullmatch(r"Serving metrics at http://127\.0\.0\.1:\d+/metrics\n", out.getvalue())
    assert 'idempotency_keys_in_doubt{database="default"} 1.0' in out.metrics
    assert capfd.readouterr().err == ""


def test_it_serves_the_counters_of_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that they have written into the folder of the multiprocess mode."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    script = "import prometheus_client; prometheus_client.Counter('worked', 'By a worker.').inc()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    metrics = served(database=["default"]).metrics
    assert "worked_total 1.0" in metrics
    assert 'idempotency_keys_stuck{database="default"} 0.0' in metrics


def test_workers_report_that_they_run_without_protection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command runs with protection on, so its own settings say nothing about the workers."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    script = """
from django.conf import settings
settings.configure(SECRET_KEY="s", INSTALLED_APPS=["django_idempotency"], IDEMPOTENCY={"ENABLED": False}, DATABASES={
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
import django
django.setup()
from django_idempotency import metrics, run_once
metrics.install()
run_once(lambda: 1, scope="s", key="k", operation="charge")
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    metrics = served().metrics
    assert 'idempotency_keys_protection_off{database="default"} 0.0' in metrics
    assert 'idempotency_key_outcomes_total{operation="charge",outcome="unprotected"} 2.0' in metrics


@contextmanager
def serving() -> Iterator[int]:
    """The server in a thread, which ends with the block; gives its port."""
    app = prometheus_client.make_wsgi_app(prometheus_client.CollectorRegistry())
    with make_server("127.0.0.1", 0, app, idempotency_metrics.Server, idempotency_metrics.Silent) as server:
        done = Event()

        def serve() -> None:
            while not done.is_set():
                server.handle_request()
                server.cut_off()

        thread = Thread(target=serve)
        thread.start()
        try:
            yield server.server_port
        finally:
            done.set()
            thread.join(30)


def half_open(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(b"GET /met")
    return client


def test_a_client_that_never_ends_its_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread and its file descriptor are free again."""
    monkeypatch.setattr(idempotency_metrics, "PATIENCE", 0)
    with serving() as port, half_open(port) as client:
        assert client.recv(100) == b""


def test_of_too_many_clients_the_oldest_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus, which has just come, gets its answer."""
    monkeypatch.setattr(idempotency_metrics, "MOST", 2)
    with serving() as port, half_open(port) as first, half_open(port), half_open(port):
        assert first.recv(100) == b""
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert answer.status == 200


def test_a_port_that_is_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=r"^127\.0\.0\.1:"):
            call_command("idempotency_metrics", port=port, stdout=io.StringIO())
