"""The public names: users need nothing from `engine`, and what is public is documented."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

import django_idempotency
from django_idempotency import (
    IdempotencyConfigurationError,
    NotRun,
    OperationInProgress,
    OutcomeUnknown,
    PayloadMismatch,
    StoreBusy,
)
from tests.acceptance.reference import public
from tests.acceptance.surface import FILE, text

ROOT = Path(__file__).parents[2]
ENGINE = re.compile(
    r'(?:from|import) django_idempotency\.engine|from django_idempotency import engine|"django_idempotency\.engine'
)
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
CODE = [*(ROOT / "docs").rglob("*.py"), *(ROOT / "testproject").rglob("*.py")]


@pytest.fixture(scope="module")
def modules() -> dict[str, list[str]]:
    """The public modules and their names."""
    for module in ("boto3", "drf_spectacular", "ninja", "opentelemetry", "prometheus_client", "redis", "strawberry"):
        pytest.importorskip(module)
    return public()


@pytest.mark.parametrize("file", [*PAGES, *CODE], ids=lambda file: str(file.relative_to(ROOT)))
def test_users_import_nothing_from_the_engine(file: Path) -> None:
    """Neither in the documentation nor in the shop; modules and names of the engine change without notice."""
    assert [line for line in file.read_text().splitlines() if ENGINE.search(line)] == []


def test_docstrings_of_public_names_do_not_point_into_the_engine(modules: dict[str, list[str]]) -> None:
    """Each module, each of its names, and their methods."""
    told = []
    for module, names in modules.items():
        home = import_module(module)
        values = [home, *(getattr(home, name) for name in names)]
        values += [method for value in values if isinstance(value, type) for method in vars(value).values()]
        told += [value for value in values if "django_idempotency.engine" in (inspect.getdoc(value) or "")]
    assert told == []


def test_what_is_public_is_what_the_file_says(modules: dict[str, list[str]]) -> None:
    """Names, options, codes, events, metrics, columns, flags: whoever changes one sees it, and says it."""
    changed = list(
        difflib.unified_diff(FILE.read_text().splitlines(), text().splitlines(), "docs", "code", "", "", 0, "")
    )
    assert not changed, (
        "what is public has changed:\n\n" + "\n".join(changed[2:]) + "\n\nIf you want that, run "
        "python -m tests.acceptance.surface, and see docs/versions.md for what may change, and when."
    )


def test_every_public_name_is_documented(modules: dict[str, list[str]]) -> None:
    """In `__all__` of its module, and by that name on a page."""
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert {"django_idempotency", "django_idempotency.exceptions", "django_idempotency.signals"} <= set(modules)
    assert not [module for module in modules if ".engine" in module]
    for names in modules.values():
        assert [name for name in names if not re.search(rf"`{name}\b", text)] == []
        assert sorted(set(names)) == sorted(names)


def test_the_package_exports_its_public_names() -> None:
    """And nothing else. Each of them is in the file of what is public."""
    with pytest.raises(AttributeError, match="no attribute 'run'"):
        django_idempotency.run  # noqa: B018


def test_a_module_of_models_may_import_them(tmp_path: Path) -> None:
    """A page of Wagtail is a model, and answers requests. Django imports models before relations can be resolved."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "models.py").write_text("from django_idempotency import *\nfrom django_idempotency.views import *")
    code = "import django; from django.conf import settings; settings.configure(INSTALLED_APPS={!r}); django.setup()"
    apps = ["shop", "django_idempotency", "django.contrib.contenttypes", "django.contrib.auth"]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code.format(apps)], env=found, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- who catches what


def test_a_set_up_error_is_djangos_and_pythons() -> None:
    """Whoever catches either gets it."""
    assert issubclass(IdempotencyConfigurationError, ImproperlyConfigured)
    assert issubclass(IdempotencyConfigurationError, TypeError)


def test_the_exceptions_have_one_base() -> None:
    """For a consumer that only wants to know whether to acknowledge."""
    assert all(issubclass(e, NotRun) for e in (OperationInProgress, OutcomeUnknown, PayloadMismatch, StoreBusy))
