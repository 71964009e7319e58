"""`management/stopping.py`: a signal may arrive at any moment."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from threading import Thread
from types import FrameType
from typing import Any

from django_idempotency.management.stopping import SIGNALS, Stop, stoppable


def wait_with_a_signal_at(step: int) -> tuple[Stop, list[int]]:
    """Wait for no time, with SIGTERM before this step of the interpreter. Gives the event and the signals."""
    stop, left = Stop(), step

    def watch(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if event == "opcode" and left == 0:
            signal.raise_signal(signal.SIGTERM)
        return watch

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for this when tracing begins
    with stoppable(stop, SIGNALS) as received:
        sys.settrace(watch)
        try:
            stop.wait(0)
        finally:
            sys.settrace(before)
    return stop, received


def test_a_signal_at_any_step_of_a_wait_is_kept() -> None:
    """The wait ends, and so does each later one. `threading.Event` hangs here, because both ends take its lock."""
    for step in itertools.count(1):
        stop, received = wait_with_a_signal_at(step)
        if not received:
            break
        assert (received, stop.is_set(), stop.wait(60), stop.wait(60)) == ([signal.SIGTERM], True, True, True)
    assert step > 10


def test_a_signal_ends_a_wait() -> None:
    """The command rests for a minute between two batches."""
    stop = Stop()
    with stoppable(stop, SIGNALS) as received:
        sender = Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
        sender.start()
        assert stop.wait(60) is True
        sender.join()
    assert received == [signal.SIGTERM]


def test_without_a_signal_the_wait_is_over_in_time() -> None:
    """It is not set then."""
    stop = Stop()
    assert (stop.wait(0), stop.is_set()) == (False, False)
