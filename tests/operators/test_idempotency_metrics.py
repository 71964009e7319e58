"""`manage.py idempotency_metrics`: metrics from a process that answers while all workers are busy."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest
from django.core.management import CommandError, call_command

from tests.expired import make_leased

pytest.importorskip("prometheus_client")
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


def test_a_port_that_is_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=r"^127\.0\.0\.1:"):
            call_command("idempotency_metrics", port=port, stdout=io.StringIO())
