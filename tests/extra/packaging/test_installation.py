"""The wheel in an empty environment with Django alone: each supported Django."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.extra.packaging.conftest import INSTALLATION, PAIRS, Distributions, interpreter, run

ABSENT = """
import importlib.util, json
names = ["rest_framework", "ninja", "drf_spectacular", "psycopg", "psycopg2", "MySQLdb", "prometheus_client", "pytest"]
print(json.dumps([name for name in names if importlib.util.find_spec(name)]))
"""
IMPORTS = """
import importlib, json, pkgutil
import django
from django.conf import settings
apps = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")]
settings.configure(SECRET_KEY="s", INSTALLED_APPS=[*apps, "django_idempotency"])
django.setup()
import django_idempotency
failed = {}
for module in pkgutil.walk_packages(django_idempotency.__path__, "django_idempotency.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed[module.name] = str(error)
print(json.dumps(failed))
"""


@pytest.fixture(scope="module", params=PAIRS, ids=[f"django{django}" for _, django in PAIRS])
def python(
    request: pytest.FixtureRequest, distributions: Distributions, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An interpreter that has the wheel, Django, and what Django itself needs."""
    version, django = request.param
    folder = tmp_path_factory.mktemp("environment")
    run(interpreter(version), "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", distributions.wheel, f"django~={django}.0")
    return python


@pytest.mark.timeout(INSTALLATION)
def test_only_django_is_there(python: Path, tmp_path: Path) -> None:
    """So nothing else can be what makes the package work."""
    assert json.loads(run(python, "-c", ABSENT, cwd=tmp_path)) == []
    installed = json.loads(run(python, "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    assert {package["name"].lower() for package in installed} <= {
        *("asgiref", "django", "django-idempotency", "pip", "setuptools", "sqlparse"),
    }


@pytest.mark.timeout(INSTALLATION)
def test_only_the_adapters_cannot_be_imported(python: Path, tmp_path: Path) -> None:
    """Every other module works without the REST framework, Ninja, database drivers and clients of other stores."""
    failed = json.loads(run(python, "-W", "error", "-c", IMPORTS, cwd=tmp_path))
    assert {name.split(".")[1] for name in failed} == {
        "backends",
        "graphql",
        "metrics",
        "ninja",
        "opentelemetry",
        "rest_framework",
    }
    # drf-spectacular needs the REST framework, which is missed first.
    extras = ("boto3", "graphql", "ninja", "redis", "rest_framework")
    missing = {f"No module named {name!r}" for name in extras}
    metrics = "django_idempotency.metrics needs prometheus-client, which is not installed. Run: pip install "
    traces = "django_idempotency.opentelemetry needs opentelemetry-api, which is not installed. Run: pip install "
    assert set(failed.values()) == {*missing, f"{metrics}prometheus-client", f"{traces}opentelemetry-api"}
