"""What tracing tools see of our statements, with the real packages."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.shopapp.models import Order

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
ROOT = Path(__file__).resolve().parents[3]
MAIN = "import sys; from tests.operators.tracing.tools import main; main(*sys.argv[1:])"
OPENTELEMETRY = ("opentelemetry.instrumentation.django", "opentelemetry.instrumentation.psycopg", "opentelemetry.sdk")
TOOLS = {
    "sentry": ("sentry_sdk",),
    "opentelemetry": OPENTELEMETRY,
    "opentelemetry_with_comments": OPENTELEMETRY,
    "toolbar": ("debug_toolbar",),
    "toolbar_with_debug": ("debug_toolbar",),
}
"""The packages that each needs."""
KINDS = {
    'INSERT INTO "django_idempotency_idempotencykey"': "claim",
    'UPDATE "django_idempotency_idempotencykey"': "completion",
    'INSERT INTO "shopapp_order"': "order",
}
APART = ["claim", "order", "completion"]


def traced(tool: str) -> Any:
    """What the project in a process of its own has answered, and what the tool has seen there."""
    for package in TOOLS[tool]:
        if not installed(package):
            pytest.skip(f"NOT RUN: what {tool} sees, because {package} is not installed")
    command = [sys.executable, "-c", MAIN, tool, str(connection.settings_dict["NAME"])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return {
        request: (status, replayed, [kind(statement) for statement in seen])
        for request, (status, replayed, seen) in json.loads(done.stdout).items()
    }


def installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that holds this one
        return False


def kind(statement: str) -> str:
    return next((name for text, name in KINDS.items() if text in statement), statement)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_sees_each_statement_by_itself(tool: str) -> None:
    """Claim, the view's own, completion. No message goes beside the cursors that the tool has replaced."""
    seen = traced(tool)
    assert seen == {"first": (201, "false", APART), "retry": (201, "true", ["claim"])}
    assert Order.objects.count() == 2  # with the order that opened the connection
