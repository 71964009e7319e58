"""This module checks the syntax of the idempotency keys that clients send."""

from __future__ import annotations

import re
import time
from uuid import UUID, uuid4

MAX_LENGTH = 255
"""The most characters of a key. Stripe has the same limit, and every supported database can index a text of this
length."""

MAX_AHEAD = 300
"""A client's clock can be ahead by this number of seconds. A key from the far future would live longer than `ttl`."""

_VISIBLE = re.compile(r"[\x21-\x7e]+")

# In RFC 9651 section 3.3.3, a string is printable ASCII text in double quotes. Inside the string, only quotes and
# backslashes are escaped.
_STRING = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
# The package ignores parameters after the string, so this pattern also accepts some invalid parameters. A parameter
# value can be a string or a byte sequence. It can also be a text without quotes, which may contain nearly all visible
# characters.
_VALUE = rf"%?{_STRING}|:[A-Za-z0-9+/=]*:|[!#-+\--9<-~][!#-+\--:<-~]*"
_PARAMETERS = rf"(?:;\x20*[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*"
_QUOTED_KEY = re.compile(rf"(?P<string>{_STRING}){_PARAMETERS}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,255}")
_NEVER_IN_A_BARE_KEY = frozenset('",;()')
_OTHER_STRUCTURED_TYPES = (":", "?", "@")  # byte sequence, boolean, date


class InvalidKey(ValueError):
    """This error means that a text is not a valid idempotency key. The message of the error says what is wrong with the
    text.
    """


def gettext_noop(sentence: str) -> str:
    """Mark a sentence for translators, and return the sentence unchanged.

    The module `engine.request.problems` translates the sentence later, because the modules of `engine.protocol` do not
    import Django.
    """
    return sentence


def parse_header(value: str, *, require_quoted: bool = False) -> str:
    """Return the key from the value of a request header. Raises `InvalidKey` if the value contains no valid key.

    A key in double quotes, such as `"abc"`, is a string of RFC 9651. Parameters after the key are ignored. Stripe and
    Adyen use keys without quotes. The header values `abc` and `"abc"` contain the same key.

    Args:
        value: the value of the header, as the server gives it to Django.
        require_quoted: if True, a key without quotes is refused.
    """
    if _BARE_KEY.fullmatch(value) and not require_quoted:
        return value  # nearly all keys have only letters, digits, hyphens and underscores
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
    """Return the key if it has 1 to 255 visible ASCII characters. Otherwise, raise `InvalidKey`."""
    if not key.strip():
        raise InvalidKey(gettext_noop("It is empty."))
    if len(key) > MAX_LENGTH:
        raise InvalidKey(gettext_noop("It is longer than 255 characters."))
    if _VISIBLE.fullmatch(key) is None:
        raise InvalidKey(gettext_noop("It may contain visible ASCII characters only, and no spaces."))
    return key


def is_uuid(key: str) -> bool:
    """Return whether a key is a UUID. Section 2.2 of the IETF draft recommends UUIDs as keys. Use `is_uuid` as
    `KEY_VALIDATOR`.
    """
    return _UUID.fullmatch(key) is not None


def new_key() -> str:
    """Return a new UUID of version 7. Endpoints with `late_keys="refuse"` accept only UUIDs of version 7 as keys."""
    return str(UUID(int=time.time_ns() // 10**6 << 80 | 7 << 76 | uuid4().int % 2**76))


def check_dated(key: str) -> str:
    """Return the key if it is a UUID of version 7. Otherwise, raise `InvalidKey`.

    A UUID of version 7 contains the time at which it was made.
    """
    if is_uuid(key) and UUID(key).version == 7:
        return key
    raise InvalidKey(gettext_noop("It must be a UUID of version 7, which says when it was made."))


def is_late(key: str, ttl_seconds: float, now: float) -> bool:
    """Return True if a UUID of version 7 is older than `ttl_seconds`. Also return True if the time in the UUID is in
    the future.

    If a key is older than `ttl_seconds`, the row of the key is possibly deleted already. The first 48 bits of the UUID
    are the time in milliseconds since 1970 (RFC 9562 section 5.7). The argument `now` is the database's time in seconds
    since 1970, because the database also decides when a row expires. A time is a future time only if it is more than
    `MAX_AHEAD` seconds later than the present time.
    """
    made = (UUID(key).int >> 80) / 1000
    return made < now - ttl_seconds or made > now + MAX_AHEAD
