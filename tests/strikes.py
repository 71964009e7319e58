"""Exceptions that a signal's handler raises, as soft time limits do: struck at a place that a test chooses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from uuid import UUID


class Limit(Exception):
    """What the handler of a time limit raises."""


@contextmanager
def striking(error: type[BaseException] = Limit) -> Iterator[None]:
    """Meanwhile, the handler of SIGUSR1 raises this."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    former = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, former)


def strike(*ignored: Any) -> None:
    signal.raise_signal(signal.SIGUSR1)


class Struck(UUID):
    """A value that is struck the first times that it becomes JSON."""

    strikes: list[Callable[[], object]]

    def __str__(self) -> str:
        if self.strikes:
            self.strikes.pop()()
        return super().__str__()


def struck(*strikes: Callable[[], object]) -> Struck:
    value = Struck(int=7)
    object.__setattr__(value, "strikes", list(strikes))
    return value


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
