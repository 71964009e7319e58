"""The wheel in an empty environment with Django alone: each supported Django."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.pages import blocks
from tests.packaging.conftest import INSTALLATION, PAIRS, Distributions, interpreter, run

MODELS = """
from django.db import models


class Order(models.Model):
    reference = models.CharField(max_length=100)
    amount = models.IntegerField()
"""
URLS = """
from django.urls import path

from shop.views import create_order

urlpatterns = [path("orders/", create_order)]
"""
RETRY = """
import json
from django.test import Client
from shop.models import Order

client = Client(SERVER_NAME="localhost", headers={"Idempotency-Key": '"lamp"'})
answers = [client.post("/orders/", {"reference": "lamp", "amount": 40}) for attempt in range(2)]
shown = [[answer.status_code, answer["Idempotency-Replayed"], answer.json()] for answer in answers]
print(json.dumps({"answers": shown, "orders": Order.objects.count()}))
"""
ABSENT = """
import importlib.util, json
names = ["rest_framework", "ninja", "drf_spectacular", "psycopg", "psycopg2", "MySQLdb", "prometheus_client", "pytest"]
print(json.dumps([name for name in names if importlib.util.find_spec(name)]))
"""
IMPORTS = """
import importlib, json, pkgutil
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


@pytest.fixture(scope="module")
def project(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """startproject, the README's settings and its first view, on SQLite."""
    folder = tmp_path_factory.mktemp("project")
    run(python, "-m", "django", "startproject", "config", folder)
    run(python, "manage.py", "startapp", "shop", cwd=folder)
    readme = blocks("README.md")
    with (folder / "config/settings.py").open("a") as settings:
        settings.write(readme["settings.py"])
        settings.write("INSTALLED_APPS += ['shop']\n")
        settings.write("DATABASES['default']['OPTIONS'] = {'transaction_mode': 'IMMEDIATE'}\n")
    (folder / "shop/models.py").write_text(MODELS)
    (folder / "shop/views.py").write_text(readme["shop/views.py"])
    (folder / "config/urls.py").write_text(URLS)
    return folder


@pytest.mark.timeout(INSTALLATION)
def test_only_django_is_there(python: Path, tmp_path: Path) -> None:
    """So nothing else can be what makes the package work."""
    assert json.loads(run(python, "-c", ABSENT, cwd=tmp_path)) == []
    installed = json.loads(run(python, "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    assert {package["name"].lower() for package in installed} <= {
        *("asgiref", "django", "django-idempotency", "pip", "setuptools", "sqlparse"),
    }


@pytest.mark.timeout(INSTALLATION)
def test_a_retry_creates_no_second_order(python: Path, project: Path) -> None:
    """The checks are clean, no migration is missing, and two POSTs with one key make one row."""
    run(python, "manage.py", "makemigrations", "shop", cwd=project)
    run(python, "manage.py", "makemigrations", "--check", "--dry-run", cwd=project)
    run(python, "manage.py", "migrate", cwd=project)
    checked = run(python, "-W", "error", "manage.py", "check", "--database", "default", cwd=project)
    assert checked == "System check identified no issues (0 silenced).\n"
    shown = run(python, "-W", "error", "manage.py", "shell", "--verbosity", "0", "-c", RETRY, cwd=project)
    assert json.loads(shown) == {
        "answers": [[201, "false", {"id": 1}], [201, "true", {"id": 1}]],
        "orders": 1,
    }


@pytest.mark.timeout(INSTALLATION)
def test_only_the_adapters_cannot_be_imported(python: Path, project: Path) -> None:
    """Every other module works without the REST framework, Ninja and database drivers."""
    shown = run(python, "manage.py", "shell", "--verbosity", "0", "-c", IMPORTS, cwd=project)
    failed = json.loads(shown)
    assert {name.split(".")[1] for name in failed} == {"metrics", "ninja", "rest_framework"}
    assert set(failed.values()) == {
        f"django_idempotency.{module}, which is not installed. Run: pip install {package}"
        for module, package in (
            ("metrics needs prometheus-client", "prometheus-client"),
            ("ninja needs Django Ninja", "django-ninja"),
            ("rest_framework needs Django REST framework", "djangorestframework"),
        )
    }


@pytest.mark.timeout(INSTALLATION)
@pytest.mark.parametrize(
    ("forgotten", "command", "message"),
    [
        (
            "INSTALLED_APPS.remove('django_idempotency')",
            ["check"],
            'Add it there: INSTALLED_APPS = [..., "django_idempotency"]. Then run: python manage.py migrate',
        ),
        (
            "DATABASES['default']['NAME'] = BASE_DIR / 'not-migrated.sqlite3'",
            ["shell", "--verbosity", "0", "-c", RETRY],
            "no up-to-date table 'django_idempotency_idempotencykey'. Run: python manage.py migrate",
        ),
        (
            "IDEMPOTENCY = {'TLL': 60}",
            ["check"],
            "unknown IDEMPOTENCY setting 'TLL'. Did you mean 'TTL'?",
        ),
        (
            "IDEMPOTENCY = {'USING': 'orders'}",
            ["shell", "--verbosity", "0", "-c", RETRY],
            "database 'orders', which does not exist. Known are: default.",
        ),
    ],
    ids=["the app", "migrate", "a letter", "the alias"],
)
def test_what_was_forgotten_is_told(
    python: Path, project: Path, forgotten: str, command: list[str], message: str
) -> None:
    """By the first command, or by the first request."""
    (project / "config/forgotten.py").write_text(f"from config.settings import *\n{forgotten}\n")
    said = run(python, "manage.py", *command, "--settings", "config.forgotten", cwd=project, fails=True)
    assert message in said
