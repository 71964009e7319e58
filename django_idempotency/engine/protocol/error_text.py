"""An error for operators: its class and its place in the code. Its message may hold a secret, and is not stored."""

from __future__ import annotations

import sysconfig
from traceback import walk_tb

from .digests import CONTROLS

MAX_LENGTH = 500
"""Characters. A class may have any name."""
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
"""The folders of code that is not the project's own."""
OURS = "django_idempotency."


def describe(error: BaseException) -> str:
    """`module.Class: line 42 of module.function`, in one line that is valid in any database.

    The place is the last line of the project's own code that the error has passed. The message of the error is left
    out, because it may quote a token, a card number or a row. Django's log has the message and the whole traceback.
    """
    kind = type(error)
    text = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        module, code = str(frame.f_globals.get("__name__")), frame.f_code
        if not (module.startswith(OURS) or code.co_filename.startswith(LIBRARIES)):
            place = f": line {line} of {module}.{code.co_qualname}"
    return without_controls(text + place)[:MAX_LENGTH]


def without_controls(text: str) -> str:
    """The text on one line, with an escape for each control character, which a terminal would obey.

    No database takes half a surrogate pair, and PostgreSQL no NUL. They count as control characters.
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
