"""`management/stopping.py`, and the pause of a cleanup: a signal may arrive at any moment."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType
from typing import Any

import pytest

from django_idempotency.maintenance.cleanup import _Run
from django_idempotency.management import stopping
from django_idempotency.management.stopping import SIGNALS, stoppable


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


def between_two_batches(stop: Event, pause: float = 0) -> bool:
    """Whether a cleanup ends there."""
    unused: Any = None
    return _Run(unused, (None, None, pause), stop).reached()


def test_a_signal_at_any_step_between_two_batches_is_kept() -> None:
    """The run ends. If the run waited for the event, the handler would wait for the event's lock, for ever."""
    for step in itertools.count(1):
        stop = Event()
        with stoppable(stop, SIGNALS) as received:
            with_a_signal_at(step, signal.SIGTERM, lambda stop=stop: between_two_batches(stop))
        if not received:
            break
        assert (received, stop.is_set(), between_two_batches(stop, 60)) == ([signal.SIGTERM], True, True)
    assert step > 10


def test_a_second_signal_at_any_step_of_the_handler_is_kept() -> None:
    """Ctrl-C while SIGTERM is handled: the second handler does not wait for the lock of the first one."""
    for step in itertools.count(1):
        stop = Event()
        with stoppable(stop, SIGNALS) as received:
            with_a_signal_at(step, signal.SIGINT, lambda: signal.raise_signal(signal.SIGTERM))
        assert stop.is_set()
        assert signal.SIGTERM in received
        if signal.SIGINT not in received:
            break
    assert step > 10


@pytest.mark.parametrize("number", SIGNALS)
def test_a_later_signal_ends_what_is_running(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang. The exit status is that of the later signal."""
    monkeypatch.setattr(stopping, "MOMENT", 0)
    with stoppable(Event(), SIGNALS):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(number)
    assert caught.value.code == 128 + number


def test_a_signal_ends_a_pause() -> None:
    """The command rests for a minute between two batches."""
    stop = Event()
    with stoppable(stop, SIGNALS) as received:
        sender = Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
        sender.start()
        assert between_two_batches(stop, 60) is True
        sender.join()
        signal.raise_signal(signal.SIGINT)  # a person loses patience: the run is ending already
    assert received == [signal.SIGTERM, signal.SIGINT]


def test_without_a_signal_the_pause_is_over_in_time() -> None:
    """The run goes on."""
    stop = Event()
    assert (between_two_batches(stop, 0.2), stop.is_set()) == (False, False)
