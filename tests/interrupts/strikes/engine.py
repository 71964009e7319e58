"""Strikes work with a signal, at any one of the places where CPython runs the handlers of signals.

CPython calls a signal's handler between two byte codes, and only in some places: as a Python function begins, after a
call, and at the end of each turn of a loop. `places()` runs some work and lists all of these that it comes by in the
files of `SCOPE`. `strike()` runs it again, and marks a signal as pending at one of them. The interpreter then calls the
handler by itself: after a call, for example, that has had its effect, and before its result is stored. It is what
Celery's soft time limit, Ctrl-C or an alarm does, at a place that is chosen instead of by chance.

Python 3.11 has trace functions for this, later versions have `sys.monitoring`.
"""

from __future__ import annotations

import ctypes
import opcode
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident, main_thread
from types import CodeType
from typing import Any

import django

import django_idempotency

PACKAGE = str(Path(django_idempotency.__file__).parent) + "/"
_DJANGO = Path(django.__file__).parent
SCOPE = (
    PACKAGE,
    *(str(_DJANGO / "db" / name) for name in ("transaction.py", "backends/base/base.py", "backends/utils.py")),
    *(str(_DJANGO / "db/backends" / name / "base.py") for name in ("postgresql", "sqlite3", "mysql")),
)
"""The beginnings of the names of those files in which strikes are made: the package, and the parts of Django that have
a connection's transaction in their hands."""
SIGNAL = signal.SIGUSR1
MAIN = main_thread().ident
VISITS = 3
"""How often one place of the code is struck in one piece of work: a loop's first turns, a function's first calls."""
CHECKED = frozenset(
    opcode.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in opcode.opmap
)
"""The byte codes that look for a pending signal when they are done. RESUME begins a function, and does so, too."""
RESUME = opcode.opmap["RESUME"]


class TimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded."""


class Stop(BaseException):
    """As KeyboardInterrupt and SystemExit."""


class Late(TimeoutError):
    """As a handler that raises the TimeoutError which drivers raise, too."""


KINDS: tuple[type[BaseException], ...] = (TimeLimit, Stop, Late)


class Hung(BaseException):
    """The work has not ended in time."""


@dataclass(frozen=True)
class Place:
    """A byte code, and the how-manieth time that the work comes by."""

    code: CodeType
    offset: int
    visit: int

    def __str__(self) -> str:
        line = next((line for begin, end, line in self.code.co_lines() if begin <= self.offset < end), 0)
        file = "/".join(Path(self.code.co_filename).parts[-3:])
        name = opcode.opname[self.code.co_code[self.offset]]
        return f"{file}:{line} {self.code.co_qualname} +{self.offset} {name} #{self.visit}"


@dataclass(frozen=True)
class Run:
    """How the work went: what it returned or raised, and what struck it."""

    value: Any = None
    error: BaseException | None = None
    struck_by: BaseException | None = None


_where: dict[int, frozenset[int]] = {}
_kept: list[CodeType] = []
_seen: list[tuple[CodeType, int]] | None = None
_target: Place | None = None
_left = 0
_interrupt: Any = ctypes.pythonapi.PyErr_SetInterruptEx
_raised: list[BaseException] = []
_kind: type[BaseException] = TimeLimit


def places(work: Callable[[], Any], found: list[Place]) -> Run:
    """Run the work, and note in `found` where it can be struck."""
    global _seen
    _seen = seen = []
    try:
        run = _run(work)
    finally:
        _seen = None
    visits: Counter[tuple[int, int]] = Counter()
    for code, offset in seen:
        visits[id(code), offset] += 1
        if visits[id(code), offset] <= VISITS:
            found.append(Place(code, offset, visits[id(code), offset]))
    return run


def strike(place: Place, work: Callable[[], Any], kind: type[BaseException] = TimeLimit) -> Run:
    """Run the work, and strike it at this place."""
    global _target, _left, _kind
    _raised.clear()
    _target, _left, _kind = place, place.visit, kind
    try:
        run = _run(work)
    finally:
        _target = None
    try:
        for _ in range(2):  # a signal that has not been delivered yet arrives here, after the work
            pass
    except kind:
        _raised.clear()
    return Run(run.value, run.error, _raised[0] if _raised else None)


def _handled(error: BaseException) -> BaseException:
    """As after an `except`, nothing keeps the frames that it came through, and with them cursors and generators."""
    rest, seen = [error], set()
    while rest:
        one = rest.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            rest += [other for other in (one.__cause__, one.__context__) if other is not None]
    return error


def _handler(*_: object) -> None:
    error = _kind("struck")
    _raised.append(error)
    raise error


def _in_scope(code: CodeType) -> frozenset[int]:
    """The offsets of this code at which it can be struck, or none if its file is not in SCOPE."""
    if (found := _where.get(id(code))) is None:
        found = frozenset(_checked(code.co_code)) if code.co_filename.startswith(SCOPE) else frozenset()
        _kept.append(code)  # else another code could get its id
        _where[id(code)] = found
    return found


def _checked(bytes_: bytes) -> Iterator[int]:
    for offset in range(0, len(bytes_), 2):
        # After an `await` or a `yield from`, RESUME doesn't look for signals.
        if bytes_[offset] in CHECKED or (bytes_[offset] == RESUME and bytes_[offset + 1] & 3 < 2):
            yield offset


def _at(code: CodeType, offset: int) -> None:
    """The work comes by one of its places. Handlers of signals run in the main thread, and so does the work."""
    global _left
    if get_ident() != MAIN:
        return
    if _seen is not None:
        _seen.append((code, offset))
    elif _target is not None and _target.code is code and _target.offset == offset:
        _left -= 1
        if _left == 0 and code.co_code[offset] == RESUME:
            _handler()  # the functions below are called after it has looked
        elif _left == 0:
            # PyErr_SetInterruptEx(SIGNAL), without a byte code of this module that would run the handler right here.
            # `map` calls it as it is unpacked, and neither this nor a return looks for signals.
            (_,) = map(_interrupt, (SIGNAL,))


if sys.version_info >= (3, 12):
    _monitoring = sys.monitoring
    _TOOL = 4  # the numbers below are a debugger's, a coverage tool's, a profiler's and an optimizer's

    def _started(code: CodeType, offset: int) -> Any:
        if not _in_scope(code):
            return _monitoring.DISABLE
        if not _monitoring.get_local_events(_TOOL, code):
            _monitoring.set_local_events(_TOOL, code, _monitoring.events.INSTRUCTION | _monitoring.events.PY_RESUME)
        return _resumed(code, offset)

    def _resumed(code: CodeType, offset: int) -> None:
        if offset in _in_scope(code):
            _at(code, offset)

    def _instruction(code: CodeType, offset: int) -> Any:
        if offset not in _in_scope(code) or code.co_code[offset] == RESUME:
            return _monitoring.DISABLE
        return _at(code, offset)

    @contextmanager
    def watching() -> Iterator[None]:
        """`places` and `strike` work meanwhile."""
        events = _monitoring.events
        _monitoring.use_tool_id(_TOOL, "interrupts")
        _monitoring.register_callback(_TOOL, events.PY_START, _started)
        _monitoring.register_callback(_TOOL, events.PY_RESUME, _resumed)
        _monitoring.register_callback(_TOOL, events.INSTRUCTION, _instruction)
        before = signal.signal(SIGNAL, _handler)
        _monitoring.set_events(_TOOL, events.PY_START)
        _monitoring.restart_events()
        try:
            yield
        finally:
            _monitoring.set_events(_TOOL, 0)
            for code in _kept:
                _monitoring.set_local_events(_TOOL, code, 0)
            _monitoring.free_tool_id(_TOOL)
            signal.signal(SIGNAL, before)

    def _run(work: Callable[[], Any]) -> Run:
        try:
            return Run(value=work())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Run(error=_handled(error))

else:

    @contextmanager
    def watching() -> Iterator[None]:
        """`places` and `strike` work meanwhile."""
        before = signal.signal(SIGNAL, _handler)
        try:
            yield
        finally:
            signal.signal(SIGNAL, before)

    def _run(work: Callable[[], Any]) -> Run:
        before = sys.gettrace()
        try:
            sys.settrace(_called)
            return Run(value=work())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Run(error=_handled(error))
        finally:
            sys.settrace(before)

    def _called(frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not _in_scope(code) or (_target is not None and code is not _target.code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if frame.f_lasti in _in_scope(code):
            _at(code, frame.f_lasti)
        return _stepped

    def _stepped(frame: Any, event: str, arg: Any) -> Any:
        code, offset = frame.f_code, frame.f_lasti
        if event == "opcode" and offset in _in_scope(code) and code.co_code[offset] != RESUME:
            _at(code, offset)
        return _stepped
