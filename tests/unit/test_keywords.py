"""The options as keyword arguments, for type checkers."""

from __future__ import annotations

from typing import get_type_hints

from django_idempotency.engine.conf import (
    Idempotency,
    Keywords,
    OnceKeywords,
    UnleasedKeywords,
)
from django_idempotency.engine.execution.once import OPTIONS


def test_type_checkers_know_the_same_options() -> None:
    """As keyword arguments, by name and type; `once` takes those that need no request."""
    assert get_type_hints(Keywords) == get_type_hints(Idempotency)
    assert sorted(OnceKeywords.__annotations__) == sorted(OPTIONS)
    assert {*OPTIONS} - {*UnleasedKeywords.__annotations__} == {"lease", "on_abandoned", "reconcile"}
