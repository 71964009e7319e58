"""This module writes the descriptions of errors that operators read. The text has the class of the error and the place
in the code.

The package does not store the message of an error, because the message can contain a secret.
"""

from __future__ import annotations

import re
import sysconfig
from traceback import walk_tb

from .digests import CONTROLS

MAX_LENGTH = 500
"""The most characters of such a text. A limit is needed because a class can have a very long name."""
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
"""The folders of Python and of installed packages. The code in these folders is not the project's own."""
HIDDEN = re.compile(
    CONTROLS.pattern[:-1] + r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff]"
)
"""What no reader sees: `CONTROLS`, which decides about rows and never changes, and what else has no shape."""
INSTALLED = re.compile(r"^<|(^|[\\/])(site|dist)-packages[\\/]")
"""Generated code, such as "<string>", and packages that are installed elsewhere, such as in a user's folder."""
OURS = "django_idempotency."


def describe(error: BaseException) -> str:
    """Return one line of text with the class and the place of an error. Every database can store this text.

    For example, the text is `module.Class: line 42 of module.function`.

    The place of the error is the last line of the project's own code in the traceback. The text does not contain the
    error's message. An error's message can contain a token, a card number or the values of a row. Django's log has the
    message and the whole traceback.
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
    """Return the text in one line. Each character that no reader sees is replaced with an escape sequence.

    In a terminal, a control character could hide or change other text.

    The function also escapes NUL and surrogate characters. No database can store a surrogate character, and PostgreSQL
    cannot store a NUL.
    """
    return HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
