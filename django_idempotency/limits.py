"""Was an exception raised into the code from outside, as a time limit or a cancellation is?

Code that may ignore an error of its own, or treat it as the silence of a server, must not do so with such an exception:
the process would go on as if there were no limit.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from traceback import walk_tb
from types import CodeType


def is_limit(error: BaseException) -> bool:
    """Whether no code below has raised this exception.

    That is known of Ctrl-C, cancellations and everything else that isn't an `Exception`, of a MemoryError, and of what
    a signal handler raises, as Celery's does for a soft time limit: its frame is in the traceback. Of an `Exception`
    that another thread raises here, by `PyThreadState_SetAsyncExc`, it can't be known.
    """
    if not isinstance(error, Exception) or isinstance(error, MemoryError):
        return True
    handlers = set(_handlers())
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def limit_in(error: BaseException | None, handled: BaseException | None) -> BaseException | None:
    """Return the limit because of which a library raised an error of its own, or None if there was none.

    Args:
        error: what the library raised. redis-py, for example, turns each TimeoutError into its own.
        handled: `sys.exception()` from before the library was called. What led to that is over.
    """
    found: BaseException | None = None
    seen: list[BaseException] = []  # `raise … from` can tie a loop
    while error is not None and error is not handled and error not in seen:
        if is_limit(error):
            found = error  # not the first: urllib3 gives its own error the traceback of what it has caught
        seen.append(error)
        error = error.__context__ or error.__cause__
    return found


def _handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # of a partial
        for function in (handler, vars(type(handler)).get("__call__")):
            if isinstance(code := getattr(function, "__code__", None), CodeType):
                yield code
