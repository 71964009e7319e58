"""`stoppable` of `management/base.py`, and a cleanup between two batches: a signal may arrive at any moment."""

from __future__ import annotations

import itertools
import math
import signal
from functools import partial
from threading import Event
from typing import Any

import pytest

from django_idempotency.maintenance.cleanup import is_over
from django_idempotency.management import base
from django_idempotency.management.base import SIGNALS, stoppable
from tests.strikes import Limit, striking, with_a_signal_at


def between_two_batches(stop: Event) -> bool:
    """Whether a cleanup ends there."""
    return is_over(stop, math.inf)


def test_a_signal_at_any_step_between_two_batches_is_kept() -> None:
    """The run ends. If the run waited for the event, the handler would wait for the event's lock, for ever."""
    for step in itertools.count(1):
        stop = Event()
        between = partial(between_two_batches, stop)
        received = stoppable(stop, partial(with_a_signal_at, step, signal.SIGTERM, between))
        if not received:
            break
        assert (received, stop.is_set(), between_two_batches(stop)) == ([signal.SIGTERM], True, True)
    assert step > 10


def test_a_second_signal_at_any_step_of_the_handler_is_kept() -> None:
    """Ctrl-C while SIGTERM is handled: the second handler does not wait for the lock of the first one."""
    for step in itertools.count(1):
        stop = Event()
        terminate = partial(signal.raise_signal, signal.SIGTERM)
        received = stoppable(stop, partial(with_a_signal_at, step, signal.SIGINT, terminate))
        assert stop.is_set()
        assert signal.SIGTERM in received
        if signal.SIGINT not in received:
            break
    assert step > 10


def test_two_signals_within_a_moment_are_one_wish() -> None:
    """A person loses patience: the run is ending already."""
    both = (signal.raise_signal(number) for number in (signal.SIGTERM, signal.SIGINT))
    received = stoppable(stop := Event(), partial(list, both))
    assert (received, stop.is_set()) == ([signal.SIGTERM, signal.SIGINT], True)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_later_signal_ends_what_is_running(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang. The exit status is that of the later signal."""
    monkeypatch.setattr(base, "MOMENT", 0)
    both = (signal.raise_signal(each) for each in (signal.SIGTERM, number))
    with pytest.raises(SystemExit) as caught:
        stoppable(Event(), partial(list, both))
    assert caught.value.code == 128 + number


def test_an_exception_at_any_step_leaves_the_former_handlers() -> None:
    """A time limit that strikes as they are set, while they are used, or as they are put back."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with striking():
        for step in itertools.count(1):
            try:
                with_a_signal_at(step, signal.SIGUSR1, lambda: stoppable(Event(), lambda: None))
            except Limit:
                assert [signal.getsignal(number) for number in SIGNALS] == before
            else:
                break
    assert step > 50


def test_another_thread_runs_without_handlers(in_threads: Any) -> None:
    """Only the main thread can catch signals, and a command may be called in a task."""
    ran: list[str] = []
    assert in_threads(1, lambda number: stoppable(Event(), lambda: ran.append("ran"))) == [[]]
    assert ran == ["ran"]
