"""What may never change: a later release finds each key, and compares each retry, as this one does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compared.golden import FILE, values

GOLDEN: dict[str, Any] = json.loads(FILE.read_text())


@pytest.mark.django_db
def test_scopes_operations_fingerprints_and_derived_keys_never_change() -> None:
    """A fingerprint may get a new version of its rule if `Fingerprint.earlier` still has this one; nothing else may.

    Nor may anything that is stored: steps' results, headers, what is encrypted, and values in a backend.
    """
    changed = {name: value for name, value in values() if GOLDEN[name] != value}
    assert not changed, (
        f"{changed} is new. With another fingerprint, retries across the upgrade would be refused; with another scope, "
        "operation, hash or derived key, they would run again. See tests/compared/golden.py."
    )
    assert [name for name, _ in values()] == [*GOLDEN], "python -m tests.compared.golden adds what is missing"
