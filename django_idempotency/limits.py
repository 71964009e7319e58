"""Did an exception come from outside the code, as time limits and cancellations do?

Some code ignores errors, or takes an error as a sign that a server doesn't answer. It must let such an exception pass.
Otherwise, the process would go on as if there were no limit.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from traceback import walk_tb
from types import CodeType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from threading import RLock

T = TypeVar("T")


def is_limit(error: BaseException) -> bool:
    """Whether the exception came from outside, rather than from the code that was called.

    Ctrl-C, cancellations and everything else that isn't an `Exception` count as limits, and so does a MemoryError. An
    exception from a signal handler, such as Celery's for a soft time limit, is recognized by the handler's frame in the
    traceback. An `Exception` that another thread raises here with `PyThreadState_SetAsyncExc` can't be recognized.
    """
    if not isinstance(error, Exception) or isinstance(error, MemoryError):
        return True
    handlers = set(_handlers())
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def limit_in(error: BaseException | None, handled: BaseException | None) -> BaseException | None:
    """Return the limit that a library has turned into its own error, or None if there was none.

    Args:
        error: what the library raised. redis-py, for example, turns each TimeoutError into its own.
        handled: the value of `sys.exception()` from before the library was called. That exception and its causes are
            ignored.
    """
    limit: BaseException | None = None
    seen: list[BaseException] = []  # `raise … from` can create a loop
    while error is not None and error is not handled and error not in seen:
        if is_limit(error):
            limit = error  # keep the last match: urllib3's own error also has the limit's traceback
        seen.append(error)
        error = error.__context__ or error.__cause__
    return limit


def _handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # the function of a partial
        for function in (handler, vars(type(handler)).get("__call__")):
            if isinstance(code := getattr(function, "__code__", None), CodeType):
                yield code


def alone(lock: RLock, work: Callable[[], T], *, timeout: float = -1) -> T | None:
    """Do the work while holding the lock, or return None if the lock isn't free in time.

    The lock is released even if a limit strikes just after `acquire()` has taken it. A `with` statement can't promise
    this. In Python 3.14, a limit can strike just after `with` has taken the lock; the lock then stays held, and no
    other thread ever gets it.
    """
    try:
        return work() if lock.acquire(timeout=timeout) else None
    finally:
        try:  # noqa: SIM105 (a limit could strike in `suppress`, before the release)
            lock.release()
        except RuntimeError:  # this thread doesn't hold it
            pass
