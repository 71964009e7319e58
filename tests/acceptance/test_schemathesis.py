from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
EXAMPLES = "10"
"""For each of the seven operations. 40 take most of a minute."""


@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_schemathesis_finds_nothing_in_the_running_shop() -> None:
    """All checks, on gunicorn and PostgreSQL: each answer is as the OpenAPI schema says, the key's errors too."""
    ours = {"DATABASE_URL", "SHOP_DATA", "SHOP_DATABASE", "DJANGO_SETTINGS_MODULE"}
    # A seed, so that a failure comes again; --max-time would go on until it is spent.
    limits = ["--seed", "1", "--max-examples", EXAMPLES, "--request-timeout", "20", "--no-color"]
    result = subprocess.run(
        [sys.executable, str(HERE / "fuzz_shop.py"), *limits],
        env={key: value for key, value in os.environ.items() if key not in ours},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "7 selected / 7 total" in result.stdout
