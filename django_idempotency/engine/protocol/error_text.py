"""An error for operators: its class and message, without a traceback and without anything that looks like a secret."""

from __future__ import annotations

import re

from .digests import CONTROLS

MAX_LENGTH = 500
"""Characters: enough to see what happened, too few to store a whole request."""
MASK = "****"
_LONG_NAMES = (
    r"credential|passw(?:or)?d|passphrase|secret|signature|token|cvv|cvc"
    r"|(?:api|access|private)[-_ ]?key|session[-_ ]?id"
)
_SHORT_NAMES = r"auth|iban|jwt|otp|pin|pwd|sig"
_IS = r"""\\*["']?\s*[:=]\s*"""
"""Between a name and its value: in a query, a header, a dict, and JSON inside a text."""
_VALUE = (
    r"""\\*"(?:\\.|[^"\\])*|'(?:\\.|[^'\\])*|[\[({][^\])}]*[\])}]?|"""
    r"""(?:(?:basic|bearer|token|digest)\s+)?[^\s"',;&)}\]\\]+"""
)
"""In quotes or brackets, up to the closing one or to the end of the text, which may have been cut."""
_SECRETS = (
    # What a database quotes of the row or of the statement. The lines after it belong to the same value.
    re.compile(r"(?ms)^((?:DETAIL|CONTEXT|QUERY|STATEMENT|LINE \d+):[ \t]*).*"),
    re.compile(r"(?is)(\bkey \(.{0,300}?\)=\()(?:.*(?=\))|.*)"),
    re.compile(r"(?is)(failing row contains \().*"),
    re.compile(r"(?is)(duplicate entry )'.*'(?= for key)"),
    re.compile(r"(?is)(invalid input (?:syntax|value) for [^:\"]*: )\".*\"?"),
    re.compile(r"(?s)()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"),
    # headers that are credentials: all that follows the scheme, up to the end of the line or of the quotes
    re.compile(rf"""(?i)(authorization{_IS}\\*["']?(?:[\w-]+[ \t]+(?=\S))?)[^"'\n\\]+"""),
    re.compile(rf"""(?i)(cookie{_IS}\\*["']?)[^"'\n\\]+"""),
    # name=value, "name": "value" and Name: scheme value, by the names that hold credentials
    re.compile(rf"(?is)((?:{_LONG_NAMES})[\w-]*{_IS})({_VALUE})"),
    re.compile(rf"(?is)(\b(?:{_SHORT_NAMES}){_IS})({_VALUE})"),
    re.compile(r"(?i)([?&]key=)[^\s&\"']+"),
    re.compile(r"(?i)(\b(?:basic|bearer|jwt)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(://[^\s/:@]*:)[^\s/]+(?=@)"),  # the password of a URL
    # tokens by their shape: payment providers, GitHub, GitLab, AWS, Slack, OpenAI, Google, SendGrid, npm, JWT
    re.compile(r"()\b[a-z]{2,6}_(?:live|test)_\w+"),
    re.compile(r"()\b(?:gh[opsur]_|github_pat_|glpat-|npm_|whsec_|AIza|ya29\.|SG\.|sk-)[\w.-]{6,}"),
    re.compile(r"()\b(?:AKIA|ASIA)[0-9A-Z]{12,}"),
    re.compile(r"()\bxox[a-z]-[\w-]+"),
    re.compile(r"()\beyJ[\w-]{4,}(?:\.[\w-]*)*"),
    re.compile(r"(hooks\.slack\.com/\w+/)[\w/]+"),
    re.compile(r"()\b[A-Z]{2}\d{2}(?: ?[0-9A-Z]{4}){3,7}(?: ?[0-9A-Z]{1,3})?\b"),  # IBAN
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
    text = f"{name}: {message}"[: 4 * MAX_LENGTH]
    for pattern in _SECRETS:
        text = pattern.sub(_masked, text)
    return without_controls(" ".join(text.split()).removesuffix(":"))[:MAX_LENGTH]


def without_controls(text: str) -> str:
    """The text on one line, with an escape for each control character, which a terminal would obey.

    No database takes half a surrogate pair, and PostgreSQL no NUL. They count as control characters.
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _masked(match: re.Match[str]) -> str:
    """What stands before the secret, the mask, and the quotes of the secret."""
    value = match[2] if match.re.groups > 1 else ""
    scheme = re.match(r"""\\*["']?(?:(?:basic|bearer|token|digest)\s+(?=\S))?""", value, re.IGNORECASE)
    return f"{match[1]}{scheme[0] if scheme else ''}{MASK}"
