from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.acceptance.conftest import serve  # noqa: F401 - a fixture
from tests.acceptance.pages import blocks
from tests.shopapp import models


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Make a block of a page a module of a project whose models are the tests' own."""
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.models", models)

    def execute(page: str, file: str) -> ModuleType:
        name = file.removesuffix(".py").replace("/", ".")
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(blocks(page)[file], f"{page}:{file}", "exec"), vars(module))
        return module

    return execute
