"""An error for operators: its class and message, without a traceback and without anything that looks like a secret."""

from __future__ import annotations

import re

MAX_LENGTH = 500
"""Characters: enough to see what happened, too few to store a whole request."""
MASK = "****"
_SECRETS = (
    # name=value, "name": "value" and Name: scheme value, by the names that hold credentials
    re.compile(
        r"(?i)((?:authorization|cookie|credential|passw(?:or)?d|secret|signature|token|api[-_ ]?key|cvv|cvc)"
        r"""[\w-]*["']?\s*[:=]\s*["']?(?:(?:basic|bearer|token|digest)\s+)?)[^\s"',;&)}\]]+"""
    ),
    re.compile(r"(?i)(\b(?:basic|bearer)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(://[^\s/:@]*:)[^\s/@]+(?=@)"),  # the password of a URL
    re.compile(r"()\b[a-z]{2,6}_(?:live|test)_\w+"),  # keys of payment providers
    re.compile(r"()\b\d(?:[ -]?\d){12,18}\b"),  # card numbers
)


def describe(error: BaseException) -> str:
    """`module.Class: message` in one line, secrets masked, at most `MAX_LENGTH` characters, valid in any database."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (a broken __str__ must not keep the key from being released)
        message = ""
    # Cut first, so that the patterns do not search megabytes.
    text = " ".join(f"{name}: {message}"[: 4 * MAX_LENGTH].split()).removesuffix(":")
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    # PostgreSQL refuses NUL, and every database refuses a lone surrogate.
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode()[:MAX_LENGTH]
