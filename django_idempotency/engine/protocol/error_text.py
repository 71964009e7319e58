"""How is an error described to operators?

Operators see the class and location of an error. Its message is left out, because it can contain a secret.
"""

from __future__ import annotations

import re
import sysconfig
from traceback import walk_tb

from .digests import CONTROLS

MAX_LENGTH = 500
"""The longest description, in characters. A class name alone can be very long."""
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
"""The directories that contain Python and installed packages, and none of the project's own code."""
HIDDEN = re.compile(
    CONTROLS.pattern[:-1]
    + r"\xad\u034f\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""All invisible characters, including everything that Unicode calls a format character. `CONTROLS` contains only some
of them, and must never change, because stored rows depend on it."""
INSTALLED = re.compile(r"^<|(^|[\\/])(site|dist)-packages[\\/]")
"""Generated code, such as "<string>", and packages installed elsewhere, for example in a user's folder."""
OURS = "django_idempotency."


def describe(error: BaseException) -> str:
    """Return the class and the location of an error, as in `module.Class: line 42 of module.function`.

    The location is the last line of the project's own code in the traceback. The error's message is left out, because
    it can contain a token, a card number or a row's values. Django's log contains the message and the whole traceback.
    """
    kind = type(error)
    text = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        module, code = str(frame.f_globals.get("__name__")), frame.f_code
        file = code.co_filename
        if not (module.startswith(OURS) or file.startswith(LIBRARIES) or INSTALLED.search(file)):
            place = f": line {line} of {module}.{code.co_qualname}"
    return without_controls(text + place)[:MAX_LENGTH]


def without_controls(text: str) -> str:
    """Return the text as one line that every database can store, with invisible characters escaped.

    Control characters could hide or change other text in a terminal. No database can store a surrogate, and
    PostgreSQL cannot store a NUL.
    """
    return HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
