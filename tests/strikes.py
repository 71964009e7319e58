"""Exceptions that a signal's handler raises, as soft time limits do: struck at a place that a test chooses."""

from __future__ import annotations

import dis
import inspect
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any
from uuid import UUID

from django.db import connection


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


@contextmanager
def struck_at(statement: str) -> Iterator[None]:
    """Meanwhile, a limit strikes once, as soon as this statement is done: Django logs it before it notes the change."""
    left = [statement]

    def interrupt(record: logging.LogRecord) -> bool:
        if left and str(getattr(record, "sql", "")).startswith(left[0]):
            left.clear()
            raise Limit
        return True

    logger, level = logging.getLogger("django.db.backends"), logging.getLogger("django.db.backends").level
    connection.force_debug_cursor = True
    logger.setLevel(logging.DEBUG)
    logger.addFilter(interrupt)
    try:
        yield
    finally:
        logger.removeFilter(interrupt)
        logger.setLevel(level)
        connection.force_debug_cursor = False
    assert not left, f"{statement} was not sent"


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


def lines_of(*functions: Any) -> list[tuple[Any, int]]:
    """Each line of these functions before which an exception may strike. Where a `try:` stands, Python does nothing."""
    codes = [inspect.unwrap(function).__code__ for function in functions]
    starts = [(code, line, code.co_code[at]) for code in codes for at, line in dis.findlinestarts(code) if line]
    return list(dict.fromkeys((code, line) for code, line, operation in starts if dis.opname[operation] != "NOP"))


class Striking:
    """A trace function that raises once, just before this line, the first time or a later one."""

    def __init__(self, code: Any, number: int, which: int = 1) -> None:
        self.code, self.number, self.left = code, number, which

    @property
    def has_struck(self) -> bool:
        return not self.left

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        return self.line if frame.f_code is self.code and self.left else None

    def line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lineno == self.number and self.left:
            self.left -= 1
            if not self.left:
                raise Limit
        return self.line

    def during(self, work: Callable[[], Any]) -> bool:
        """Do the work, from which any exception may come; returns whether it was struck."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            with suppress(Exception):
                work()
        finally:
            sys.settrace(before)
        return self.has_struck
