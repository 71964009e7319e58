"""The declaration of an option or setting: default, check and description in one place."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_idempotency.engine.conf import Idempotency, Settings


@pytest.mark.parametrize(("described", "count"), [(Idempotency, 20), (Settings, 12)])
def test_the_docstring_describes_each_option_and_setting(described: Any, count: int) -> None:
    """One line for each, in the order of the fields."""
    _, _, attributes = described.__doc__.partition("\nAttributes:\n")
    names = re.findall(r"(?m)^    (\w+): \S", attributes)
    assert names == [name for name in described.__dataclass_fields__ if name != "options"]
    assert len(names) == count
