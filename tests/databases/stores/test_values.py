"""Values in a backend: what is sealed, and to what it is bound."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.http import HttpResponse

from django_idempotency import (
    NotDecryptable,
    get_operation,
)
from django_idempotency.engine.conf import backend_for
from tests.backends import FaultyBackend
from tests.elsewhere import NAME, OPTIONS, RUNS, events, faulty_backend, posting, publish  # noqa: F401 (a fixture)
from tests.heard import heard
from tests.http import replayed, same


def test_responses_are_sealed_and_bound_to_their_value(backend: FaultyBackend, settings: Any) -> None:
    """To the hashes, the fingerprint, the status and the token: a copy under another key cannot be read."""
    settings.IDEMPOTENCY |= {"ENCRYPTION_KEYS": [Fernet.generate_key().decode()]}
    sealing: Any = backend_for("events")
    first = posting()()
    value = sealing._values[NAME][0]
    assert (b"event 1" in value, value[:1]) == (False, b"1")
    assert same(first, posting()())
    # The same body under the value's own name, but with the token of another attempt.
    sealing._values[NAME] = value[:1] + b"0" * 32 + value[33:], sealing._values[NAME][1]
    with pytest.raises(NotDecryptable):
        posting()()
    assert len(RUNS) == 1


def test_an_empty_body_stays_empty() -> None:
    send = posting(lambda request: HttpResponse(status=202))
    first, second = send(), send()
    assert (same(first, second), second.content, replayed(second)) == (True, b"", "true")


def test_a_value_that_is_not_too_long_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch, backend: FaultyBackend) -> None:
    """To the byte. A tombstone keeps what the operation is about."""

    def refers(request: Any) -> HttpResponse:
        get_operation(request).refer_to("event", 7)
        return publish(request)

    posting(refers)()
    kept: Any = backend
    size = len(kept._values[NAME][0])
    for longest, found in ((size, b"event"), (size - 1, b'"resource": ["event", "7"]')):
        kept._values.clear()
        RUNS.clear()
        monkeypatch.setattr(FaultyBackend, "max_bytes", longest)
        send = posting(refers)
        assert (send().content, send().status_code) == (b"event 1", 201 if longest == size else 409)
        assert found in kept._values[NAME][0]


def test_a_wrong_encryption_key_refuses_the_key(settings: Any) -> None:
    """Nothing runs, and nothing is forgotten."""
    kept: Any = None
    for _ in range(2):
        settings.IDEMPOTENCY |= {"ENCRYPTION_KEYS": [Fernet.generate_key().decode()]}
        backend: Any = backend_for("events")
        if kept is None:
            posting()()
            kept = backend._values
    backend._values = kept
    with heard("error") as told, pytest.raises(NotDecryptable):
        posting()()
    assert (len(RUNS), NAME in kept) == (1, True)
    assert [(event["reason"], event["backend"]) for event in told] == [
        ("django_idempotency.exceptions.NotDecryptable", "events")
    ]
