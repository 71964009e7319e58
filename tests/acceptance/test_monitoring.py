"""The page about monitoring, block by block."""

from __future__ import annotations

import json
import logging
import logging.config
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_idempotency import run_once, signals
from tests.acceptance.pages import blocks

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("prometheus_client")
metrics = pytest.importorskip("django_idempotency.metrics")
PAGE = "docs/monitoring.md"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _receivers() -> Iterator[None]:
    """Those that a block connects end with its test."""
    before = list(signals.key_event.receivers)
    yield
    signals.key_event.receivers = before
    signals.key_event.sender_receivers_cache.clear()


def once(payload: int = 1) -> None:
    run_once(lambda: 1, scope="s", key="evt_1", operation="o", payload=payload)


def test_the_log_is_json_with_fields(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Each record on a line of its own."""
    logger = logging.getLogger("django_idempotency")
    level, handlers = logger.level, list(logger.handlers)
    try:
        logging.config.dictConfig(run(PAGE, "shop/logging.py").LOGGING)
        once()
    finally:
        logger.setLevel(level)
        logger.handlers = handlers
    (line,) = capfd.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["event"], record["operation"], record["key_reference"]) == ("completed", "o", "7d4e5a76eae6d8c1")


@pytest.mark.parametrize("view", ["shop/metrics_view.py", "shop/multiprocess_metrics.py"])
def test_the_view_shows_what_is_installed(view: str, tmp_path: Path) -> None:
    """In a process of its own: it is installed for good there."""
    script = f"""
import os, sys, types
sys.modules["shop"] = types.ModuleType("shop")
sys.modules["shop"].__file__ = "shop/__init__.py"
from django.conf import settings
settings.configure(SECRET_KEY="s", INSTALLED_APPS=["django_idempotency"], DATABASES={{"default": {{
    "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}})
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
exec({blocks(PAGE)["shop/apps.py"]!r})
ShopConfig("shop", sys.modules["shop"]).ready()
from django_idempotency import run_once
run_once(lambda: 1, scope="s", key="k", operation="o")
exec({blocks(PAGE)[view]!r})
print(metrics(None).content.decode())
"""
    environment = {**os.environ, **({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)} if "multi" in view else {})}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert 'idempotency_key_outcomes_total{operation="o",outcome="completed"} 1.0' in done.stdout, done.stderr
    assert 'idempotency_keys_stuck{database="default"} 0.0' in done.stdout
