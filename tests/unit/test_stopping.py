"""`stoppable` of `management/base.py`, and a cleanup between two batches: a signal may arrive at any moment."""

from __future__ import annotations

import itertools
import math
import signal
import sys
from collections.abc import Callable
from threading import Event
from types import FrameType
from typing import Any

import pytest

from django_idempotency.maintenance.cleanup import is_over
from django_idempotency.management import base
from django_idempotency.management.base import SIGNALS, stoppable


def with_a_signal_at(step: int, number: signal.Signals, action: Callable[[], object]) -> None:
    """Do it, with this signal before this step of the interpreter."""
    left = step

    def watch(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if event == "opcode" and left == 0:
            signal.raise_signal(number)
        return watch

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for this when tracing begins
    sys.settrace(watch)
    try:
        action()
    finally:
        sys.settrace(before)


def between_two_batches(stop: Event) -> bool:
    """Whether a cleanup ends there."""
    return is_over(stop, math.inf)


def test_a_signal_at_any_step_between_two_batches_is_kept() -> None:
    """The run ends. If the run waited for the event, the handler would wait for the event's lock, for ever."""
    for step in itertools.count(1):
        stop = Event()
        with stoppable(stop) as received:
            with_a_signal_at(step, signal.SIGTERM, lambda stop=stop: between_two_batches(stop))
        if not received:
            break
        assert (received, stop.is_set(), between_two_batches(stop)) == ([signal.SIGTERM], True, True)
    assert step > 10


def test_a_second_signal_at_any_step_of_the_handler_is_kept() -> None:
    """Ctrl-C while SIGTERM is handled: the second handler does not wait for the lock of the first one."""
    for step in itertools.count(1):
        stop = Event()
        with stoppable(stop) as received:
            with_a_signal_at(step, signal.SIGINT, lambda: signal.raise_signal(signal.SIGTERM))
        assert stop.is_set()
        assert signal.SIGTERM in received
        if signal.SIGINT not in received:
            break
    assert step > 10


def test_two_signals_within_a_moment_are_one_wish() -> None:
    """A person loses patience: the run is ending already."""
    with stoppable(stop := Event()) as received:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert (received, stop.is_set()) == ([signal.SIGTERM, signal.SIGINT], True)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_later_signal_ends_what_is_running(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang. The exit status is that of the later signal."""
    monkeypatch.setattr(base, "MOMENT", 0)
    with stoppable(Event()):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(number)
    assert caught.value.code == 128 + number
