"""The contract of backends: compare-and-swap with expiry, for each store that the package knows."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from django_idempotency.backends import KeyValueBackend
from django_idempotency.engine.conf import backend_for
from tests.backends import KINDS, SERVERS, configured, in_redis
from tests.servers import eventually

ODD = bytes(range(256)) * 8


@pytest.fixture(params=[pytest.param(kind, marks=SERVERS.get(kind, ())) for kind in KINDS])
def backend(request: Any, settings: Any) -> KeyValueBackend:
    settings.IDEMPOTENCY = {"BACKENDS": {"events": configured(request.param)}}
    return backend_for("events")


@pytest.fixture
def name() -> str:
    return f"1:{uuid4().hex}"


def test_a_swap_replaces_only_what_it_expects(backend: KeyValueBackend, name: str) -> None:
    """Every call returns what was there before, byte for byte."""
    steps: list[tuple[bytes | None, bytes | None, bytes | None]] = [
        (None, None, None),
        (None, b"1 claim", None),
        (None, b"1 claim", b"1 claim"),
        (None, b"1 rival", b"1 claim"),
        (b"1 rival", b"1 stolen", b"1 claim"),
        (b"1 rival", None, b"1 claim"),
        (b"1 claim", b"1 claim", b"1 claim"),
        (b"1 claim", ODD, b"1 claim"),
        (b"1 claim", ODD, ODD),
        (b"1 claim", b"1 late", ODD),
        (None, None, ODD),
        (ODD, None, ODD),
        (ODD, b"1 late", None),
        (None, None, None),
    ]
    assert [backend.swap(name, old, new, 60) for old, new, _ in steps] == [found for *_, found in steps]


def test_a_value_expires_by_itself(backend: KeyValueBackend, name: str) -> None:
    """Then it counts as absent for a reader, for its owner and for a rival, and a swap for itself had extended it."""
    other = f"{name}-renewed"
    backend.swap(name, None, b"1 claim", 0.2)
    backend.swap(other, None, b"1 claim", 0.2)
    backend.swap(other, b"1 claim", b"1 claim", 60)
    eventually("the value to expire", lambda: backend.swap(name, None, None, 0) is None)
    assert backend.swap(name, b"1 claim", b"1 late", 60) is None
    assert backend.swap(name, None, b"1 rival", 60) is None
    assert [backend.swap(each, None, None, 0) for each in (name, other)] == [b"1 rival", b"1 claim"]


def test_one_of_many_rivals_wins(backend: KeyValueBackend, name: str, in_threads: Any, request: Any) -> None:
    """The others are told the winner's value."""
    if "moto" in request.node.name:
        pytest.skip("moto checks the condition and writes without a lock between them, so two can win there")
    found = in_threads(16, lambda number: backend.swap(name, None, b"1 %d" % number, 60))
    (winner,) = (number for number, value in enumerate(found) if value is None)
    assert set(found) - {None} == {b"1 %d" % winner}


@pytest.mark.server
def test_an_address_that_asks_for_text_gets_bytes(name: str, settings: Any) -> None:
    """Values are no text, and redis-py lets the address win over its arguments."""
    address = configured("redis")["OPTIONS"]["url"]
    settings.IDEMPOTENCY = {"BACKENDS": {"events": in_redis(f"{address}?decode_responses=True")}}
    assert [backend_for("events").swap(name, old, ODD, 60) for old in (None, ODD)] == [None, ODD]


@pytest.mark.server
def test_a_lease_ends_for_its_owner_when_it_ends_for_others(
    name: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DynamoDB's condition knows milliseconds."""
    now = 1000.0
    settings.IDEMPOTENCY = {"BACKENDS": {"events": configured("moto")}}
    kept = backend_for("events")
    monkeypatch.setattr("django_idempotency.backends.dynamodb.time.time", lambda: now)
    kept.swap(name, None, b"1 claim", 30)
    now = 1029.9997
    assert kept.swap(name, b"1 claim", b"1 late", 60) is None


def test_the_longest_value_fits(backend: KeyValueBackend, name: str, request: Any) -> None:
    """`max_bytes` is what the store takes; without it, more than a response may have. moto measures base64."""
    value = b"1" * (backend.max_bytes or 2 * 1024 * 1024)
    value = value[: len(value) // 2] if "moto" in request.node.name else value
    backend.swap(name, None, value, 60)
    assert backend.swap(name, None, None, 0) == value
