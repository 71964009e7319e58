from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.acceptance.conftest import serve  # noqa: F401 - a fixture
from tests.acceptance.pages import ROOT
from tests.shopapp import models


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Make a file of docs/ a module of a project whose models are the tests' own."""
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.models", models)

    def execute(name: str) -> ModuleType:
        file = ROOT / f"docs/{name}.py"
        module = ModuleType(f"shop.{name}")
        monkeypatch.setitem(sys.modules, f"shop.{name}", module)
        exec(compile(file.read_text(), file, "exec"), vars(module))
        return module

    return execute
