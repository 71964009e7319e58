"""docs/upgrade.md: each name that 0.1.0 documents is still there, or the page has the name to type today."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from django.contrib import admin
from django.urls import NoReverseMatch, reverse

pytest.importorskip("drf_spectacular")
pytest.importorskip("ninja")
pytest.importorskip("prometheus_client")

from django_idempotency import Operation
from django_idempotency.models import IdempotencyKey
from tests.acceptance.pages import ROOT
from tests.previous_release import FIRST, unpack

ROW = r"(?m)^\| `(django_idempotency[\w.]+)` \| `(django_idempotency[\w.]+)` \|$"
IMPORT = r"(?m)^from (django_idempotency[\w.]*) import (?:\(([^)]+)\)|(.+)$)"
OTHERS = {
    "argument of a command": r"(?m)^\| `(--[\w-]+)",
    "check": r"(?m)^\| `(django_idempotency\.[EW]\d+)` \|",
    "event of a log record": r"(?m)` \| [^`]+ \| `(\w+)` \| (?:DEBUG|INFO|WARNING|ERROR) \|$",
    "exception": r"(?m)^### `([A-Z]\w+)`$",
    "metric": r"(?m)^\| `(idempotency_\w+)` \|",
    "option, setting, signal, field": r"(?m)^\| `(\w+)` \| ",
    "title of an answer": r"(?m)^\| \d{3} \| (?:`[\w-]+` \| )?([A-Z][^|]+) \|",
}
"""How the reference shows what nothing imports."""
REFERENCE = ("api.md", "checks.md", "commands.md", "errors.md", "monitoring.md", "options.md", "signals.md")
"""The pages of the reference, in one of the two versions at least."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 0.1.0."""
    folder = tmp_path_factory.mktemp("release")
    if not unpack(FIRST, folder):
        pytest.skip("NOT RUN: the history of this checkout does not reach back to the first release")
    return folder


def pages(folder: Path, *names: str) -> str:
    """The text of these pages, or of all of them."""
    files = sorted((folder / "docs").glob("*.md"))
    return "\n".join(file.read_text() for file in files if not names or file.name in names)


def importable(text: str) -> set[str]:
    """What the pages import in their code, name in a setting, or list under the heading of a module."""
    found = set(re.findall(r'"(django_idempotency\.\w+\.[\w.]+)"', text))
    for module, many, one in re.findall(IMPORT, text):
        found |= {f"{module}.{name}" for name in re.findall(r"\w+", many or one)}
    for section in re.split(r"(?m)^(?=## `django_idempotency)", text)[1:]:
        module, *names = re.findall(r"(?m)^#{2,3} `([\w.]+)", section.partition("\n## ")[0])
        found |= {f"{module}.{name}" for name in names}
    return found


def exists(name: str) -> bool:
    """Whether Python can import this name today."""
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(import_module(module), attribute)
    except ModuleNotFoundError:
        return False


def test_the_table_has_each_name_that_is_gone(release: Path) -> None:
    """And no other: so each old name was a documented one."""
    documented = importable(pages(release))
    assert {"django_idempotency.run_once", "django_idempotency.erasure.forget"} <= documented
    rows = re.findall(ROW, (ROOT / "docs/upgrade.md").read_text())
    assert sorted(old for old, _ in rows) == sorted(name for name in documented if not exists(name))
    assert [new for _, new in rows if not exists(new)] == []


@pytest.mark.parametrize("kind", OTHERS)
def test_the_other_names_have_stayed(release: Path, kind: str) -> None:
    """Those that nothing imports."""
    documented = set(re.findall(OTHERS[kind], pages(release, *REFERENCE)))
    today = pages(ROOT, *REFERENCE)
    assert documented
    assert documented - set(re.findall(OTHERS[kind], today)) - set(re.findall(r"`(\w+)`", today)) == set()


def test_the_methods_of_the_operation_have_stayed(release: Path) -> None:
    """Those of `request.idempotency`."""
    documented = re.findall(r"(?m)^#### `operation\.(\w+)", pages(release, "api.md"))
    assert {"call", "awrite", "in_doubt"} <= set(documented)
    assert [name for name in documented if not hasattr(Operation, name)] == []


def test_the_names_of_the_admin(release: Path) -> None:
    """Two filters and a page, which links and bookmarks may name."""
    old = "".join(file.read_text() for file in (release / "django_idempotency/admin").glob("*.py"))
    gone = {"attention", "status"}
    assert gone | {"response"} == set(re.findall(r'parameter_name = "(\w+)"', old))
    filters = {filter_.parameter_name for filter_ in admin.site.get_model_admin(IdempotencyKey).list_filter}
    assert "state" in filters
    assert not filters & gone
    assert reverse("admin:django_idempotency_idempotencykey_answer", args=[1]).endswith("/1/answer/")
    with pytest.raises(NoReverseMatch):
        reverse("admin:django_idempotency_idempotencykey_close", args=[1])
