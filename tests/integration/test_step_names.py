"""Names of steps are compared byte by byte on every database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_idempotency import Operation, run_once
from tests.leases import Broken

pytestmark = pytest.mark.django_db
PAIRS = (("charge", "Charge"), ("cafe", "café"), ("a", "a "))
calls: list[str] = []


def run(work: Callable[[Operation], Any]) -> Any:
    return run_once(work, scope="s", key="k", operation="pay", lease=60).value


def steps(kind: str, *names: str) -> Callable[[Operation], Any]:
    """Work that runs a step under each of these names."""
    return lambda operation: [
        getattr(operation, kind)(name, lambda name=name: calls.append(name) or name) for name in names
    ]


@pytest.mark.parametrize("names", PAIRS)
@pytest.mark.parametrize("kind", ["call", "fetch", "write"])
def test_capitals_accents_and_spaces_make_another_step(kind: str, names: tuple[str, str]) -> None:
    """In one attempt, and in the retry, which gets each step's own result."""
    calls.clear()

    def dies(operation: Operation) -> None:
        steps(kind, *names)(operation)
        raise Broken

    with pytest.raises(Broken):
        run(dies)
    assert run(steps(kind, *names)) == list(names)
    assert calls == list(names)
