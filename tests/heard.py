"""What receivers of signals are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.dispatch import Signal

from django_idempotency import signals

REFUSED = ("missing", "invalid", "replay_refused", "busy")


@contextmanager
def heard(*sent: Signal) -> Iterator[list[dict[str, Any]]]:
    """The arguments of each time that one of these signals is sent, oldest first."""
    told: list[dict[str, Any]] = []

    def receive(**arguments: Any) -> None:
        told.append(arguments)

    for signal in sent:
        signal.connect(receive)
    try:
        yield told
    finally:
        for signal in sent:
            signal.disconnect(receive)


@contextmanager
def refusals() -> Iterator[list[tuple[str, str]]]:
    """Outcome and operation of each request that was refused without a claim."""
    told: list[tuple[str, str]] = []

    def receiver(outcome: str) -> Any:
        def receive(identity: Any, using: str, attempt: None, reason: str, **kwargs: Any) -> None:
            assert (using, attempt, reason) == ("default", None, "")
            told.append((outcome, identity.operation))

        return receive

    connected = [(getattr(signals, f"key_{outcome}"), receiver(outcome)) for outcome in REFUSED]
    for signal, receive in connected:
        signal.connect(receive)
    try:
        yield told
    finally:
        for signal, receive in connected:
            signal.disconnect(receive)
