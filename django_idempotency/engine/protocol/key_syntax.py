"""What a client may send as an idempotency key."""

from __future__ import annotations

import re
import time
from uuid import UUID, uuid4

MAX_LENGTH = 255
"""Stripe's limit, and the widest text that every supported database indexes without special care."""

MAX_AHEAD = 300
"""Seconds that a client's clock may be ahead. A key of a later time would be accepted for longer than its `ttl`."""

_VISIBLE = re.compile(r"[\x21-\x7e]+")

# RFC 9651 section 3.3.3: printable ASCII in quotes; only the quote and the backslash may be escaped.
_STRING = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
# A parameter is ignored, so any visible characters will do for a value that is neither a string nor bytes.
_VALUE = rf"%?{_STRING}|:[A-Za-z0-9+/=]*:|[!#-+\--9<-~][!#-+\--:<-~]*"
_PARAMETERS = rf"(?:;\x20*[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*"
_QUOTED_KEY = re.compile(rf"(?P<string>{_STRING}){_PARAMETERS}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,255}")
_NEVER_IN_A_BARE_KEY = frozenset('",;()')
_OTHER_STRUCTURED_TYPES = (":", "?", "@")  # byte sequence, boolean, date


class InvalidKey(ValueError):
    """The text is not an idempotency key; the message says what is wrong with it."""


def gettext_noop(sentence: str) -> str:
    """Mark a sentence for translators. `engine.request.problems` translates it: this package does not import Django."""
    return sentence


def parse_header(value: str, *, require_quoted: bool = False) -> str:
    """Return the key that a header field carries. Raises `InvalidKey`.

    The quoted form `"abc"` is an RFC 9651 string, whose parameters are ignored. The bare form `abc` (Stripe, Adyen) is
    the same key, unless `require_quoted`.

    value: the field as the server hands it over.
    """
    if _BARE_KEY.fullmatch(value) and not require_quoted:
        return value  # nearly every key
    text = value.strip(" \t")
    if text.startswith('"'):
        if (match := _QUOTED_KEY.fullmatch(text)) is None:
            raise InvalidKey(
                gettext_noop('It is not one quoted string such as "8e03978e-40d5-43dd-bc93-6894a57f9324".')
            )
        return check_key(re.sub(r"\\(.)", r"\1", match["string"][1:-1]))
    if require_quoted and text:
        raise InvalidKey(gettext_noop('It must be a quoted string such as "8e03978e-40d5-43dd-bc93-6894a57f9324".'))
    if not _NEVER_IN_A_BARE_KEY.isdisjoint(text):
        raise InvalidKey(gettext_noop("Put the key in double quotes, and send the header once."))
    if text.startswith(_OTHER_STRUCTURED_TYPES):
        raise InvalidKey(gettext_noop("Put the key in double quotes: it looks like another structured field type."))
    return check_key(text)


def check_key(key: str) -> str:
    """Return `key` if it is 1 to 255 visible ASCII characters; raise `InvalidKey` otherwise."""
    if not key.strip():
        raise InvalidKey(gettext_noop("It is empty."))
    if len(key) > MAX_LENGTH:
        raise InvalidKey(gettext_noop("It is longer than 255 characters."))
    if _VISIBLE.fullmatch(key) is None:
        raise InvalidKey(gettext_noop("It may contain visible ASCII characters only, and no spaces."))
    return key


def is_uuid(key: str) -> bool:
    """A ready `KEY_VALIDATOR`: is the key a UUID, as section 2.2 of the draft recommends?"""
    return _UUID.fullmatch(key) is not None


def new_key() -> str:
    """A UUID of version 7: a key that `late_keys="refuse"` takes, too."""
    return str(UUID(int=time.time_ns() // 10**6 << 80 | 7 << 76 | uuid4().int % 2**76))


def check_dated(key: str) -> str:
    """Return `key` if it is a UUID of version 7, which says when it was made. Raise `InvalidKey` otherwise."""
    if is_uuid(key) and UUID(key).version == 7:
        return key
    raise InvalidKey(gettext_noop("It must be a UUID of version 7, which says when it was made."))


def is_late(key: str, ttl_seconds: float, now: float) -> bool:
    """Whether a key of `check_dated` may have been used before and be forgotten by now, or claims to be of the future.

    The first 48 bits are its milliseconds since 1970 (RFC 9562 section 5.7). `now`: seconds since 1970.
    """
    made = (UUID(key).int >> 80) / 1000
    return made < now - ttl_seconds or made > now + MAX_AHEAD
