"""What receivers of the signal are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_idempotency.signals import key_event

REFUSED = ("missing", "invalid", "replay_refused", "busy", "paused")


@contextmanager
def heard(*events: str) -> Iterator[list[dict[str, Any]]]:
    """The arguments of each time that the signal is sent with one of these events, or with any, oldest first."""
    told: list[dict[str, Any]] = []

    def receive(**arguments: Any) -> None:
        if not events or arguments["event"] in events:
            told.append(arguments)

    key_event.connect(receive)
    try:
        yield told
    finally:
        key_event.disconnect(receive)


@contextmanager
def refusals() -> Iterator[list[tuple[str, str]]]:
    """Outcome and operation of each request that was refused without a claim."""
    outcomes: list[tuple[str, str]] = []
    with heard(*REFUSED) as told:
        yield outcomes
    for one in told:
        assert (one["using"], one["attempt"], one["reason"]) == ("default", None, "")
        outcomes.append((one["event"], one["identity"].operation))
