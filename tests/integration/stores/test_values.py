"""Values in a backend: what is sealed, and to what it is bound."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.fernet import Fernet

from django_idempotency import (
    NotDecryptable,
)
from django_idempotency.engine.conf import backend_for
from tests.backends import FaultyBackend
from tests.elsewhere import NAME, OPTIONS, RUNS, events, faulty_backend, posting, publish  # noqa: F401 (a fixture)
from tests.heard import heard
from tests.http import same


def test_responses_are_sealed_and_bound_to_their_value(backend: FaultyBackend, settings: Any) -> None:
    """To the hashes, the fingerprint, the status and the token: a copy under another key cannot be read."""
    settings.IDEMPOTENCY |= {"ENCRYPTION_KEYS": [Fernet.generate_key().decode()]}
    sealing: Any = backend_for("events")
    first = posting()()
    value = sealing._kept[NAME][0]
    assert (b"event 1" in value, value[:1]) == (False, b"1")
    assert same(first, posting()())
    # The same body under the value's own name, but with the token of another attempt.
    sealing._kept[NAME] = value[:1] + b"0" * 32 + value[33:], sealing._kept[NAME][1]
    with pytest.raises(NotDecryptable):
        posting()()
    assert len(RUNS) == 1


def test_a_wrong_encryption_key_refuses_the_key(settings: Any) -> None:
    """Nothing runs, and nothing is forgotten."""
    kept: Any = None
    for _ in range(2):
        settings.IDEMPOTENCY |= {"ENCRYPTION_KEYS": [Fernet.generate_key().decode()]}
        backend: Any = backend_for("events")
        if kept is None:
            posting()()
            kept = backend._kept
    backend._kept = kept
    with heard("error") as told, pytest.raises(NotDecryptable):
        posting()()
    assert (len(RUNS), NAME in kept, len(told)) == (1, True, 1)
