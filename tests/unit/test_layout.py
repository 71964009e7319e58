"""The layout of the tests, as tests/README.md tells it, and what the modules of the package leave alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
MODULES = sorted(TESTS.rglob("test_*.py"))


IMPORT = re.compile(r"^\s*from (tests[\w.]*) import (\([^)]*\)|.*)$|^\s*import (tests[\w.]*)", re.MULTILINE)


def imported(module: Path) -> Iterator[str]:
    """Every module of the tests that is imported, and every name that could be one."""
    for source, names, whole in IMPORT.findall(module.read_text()):
        yield source or whole
        yield from (f"{source}.{name}" for name in re.findall(r"\w+", names))


def test_test_modules_do_not_import_each_other() -> None:
    """What two of them need stands beside them: a test can move without another one. Contracts may be run again."""
    names = {module.stem for module in MODULES}
    found = {
        (str(module.relative_to(TESTS)), name)
        for module in TESTS.rglob("*.py")
        for name in imported(module)
        if name.rpartition(".")[2] in names
        if not name.startswith("tests.contracts.")
    }
    assert len(names) > 80
    assert found == set()


def test_no_test_module_has_more_than_400_lines() -> None:
    """A reader finds the test of a rule by the name of its module, so a module tests few rules."""
    lines = {str(module.relative_to(TESTS)): len(module.read_text().splitlines()) for module in TESTS.rglob("*.py")}
    assert {name: number for name, number in lines.items() if number > 400} == {}


def test_what_is_imported_decides_nothing() -> None:
    """Only whether gevent has patched the threads is asked of `sys.modules`, because gevent says it nowhere else."""
    package = TESTS.parent / "django_idempotency"
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if "sys.modules" in path.read_text()}
    assert found == {"engine/stores/messages.py"}
