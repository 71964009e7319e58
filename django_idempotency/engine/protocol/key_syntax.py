"""Which strings are valid idempotency keys, and how does a client write them in a header?"""

from __future__ import annotations

import re
import time
from uuid import UUID, uuid4

MAX_LENGTH = 255
"""The longest key, in characters. Stripe has the same limit, and every supported database can index such strings."""

MAX_AHEAD = 300
"""How many seconds a client's clock may be ahead. A key from the far future would outlive `ttl`."""

_VISIBLE = re.compile(r"[\x21-\x7e]+")

# RFC 9651 section 3.3.3: printable ASCII in double quotes, with only quotes and backslashes escaped.
_STRING = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
# Parameters are ignored, so they need not be strictly valid. A value is a string, a byte sequence, or unquoted text,
# which may contain nearly any visible character.
_VALUE = rf"%?{_STRING}|:[A-Za-z0-9+/=]*:|[!#-+\--9<-~][!#-+\--:<-~]*"
_PARAMETERS = rf"(?:;\x20*[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*"
_QUOTED_KEY = re.compile(rf"(?P<string>{_STRING}){_PARAMETERS}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,255}")
_NEVER_IN_A_BARE_KEY = frozenset('",;()')
_OTHER_STRUCTURED_TYPES = (":", "?", "@")  # byte sequence, boolean, date
KEY_HEADERS: set[str] = set()
"""The headers that a project has passed to `from_header`. A page that sends its form again repeats these headers."""


class InvalidKey(ValueError):
    """The text is not a valid idempotency key; the message says why."""


def gettext_noop(sentence: str) -> str:
    """Mark a sentence for translators, and return it unchanged.

    `engine.request.problems` translates it later, because `protocol` does not import Django.
    """
    return sentence


def parse_header(value: str) -> str:
    """Return the key in a header's value, or raise `InvalidKey`.

    A key in double quotes is a string as defined in RFC 9651, and any parameters after it are ignored. Stripe and
    Adyen send keys without quotes, so `abc` and `"abc"` are the same key.

    Args:
        value: the header's value as Django received it.
    """
    if _BARE_KEY.fullmatch(value):
        return value  # nearly all keys have only letters, digits, hyphens and underscores
    text = value.strip(" \t")
    if text.startswith('"'):
        if (match := _QUOTED_KEY.fullmatch(text)) is None:
            raise InvalidKey(
                gettext_noop('It is not one quoted string such as "8e03978e-40d5-43dd-bc93-6894a57f9324".')
            )
        return check_key(re.sub(r"\\(.)", r"\1", match["string"][1:-1]))
    if not _NEVER_IN_A_BARE_KEY.isdisjoint(text):
        raise InvalidKey(gettext_noop("Put the key in double quotes, and send the header once."))
    if text.startswith(_OTHER_STRUCTURED_TYPES):
        raise InvalidKey(gettext_noop("Put the key in double quotes: it looks like another structured field type."))
    return check_key(text)


def check_key(key: str) -> str:
    """Return the key if it consists of 1 to 255 visible ASCII characters, else raise `InvalidKey`."""
    if not key.strip():
        raise InvalidKey(gettext_noop("It is empty."))
    if len(key) > MAX_LENGTH:
        raise InvalidKey(gettext_noop("It is longer than 255 characters."))
    if _VISIBLE.fullmatch(key) is None:
        raise InvalidKey(gettext_noop("It may contain visible ASCII characters only, and no spaces."))
    return key


def is_uuid(key: str) -> bool:
    """Return whether a key is a UUID, as section 2.2 of the IETF draft recommends. For use as `KEY_VALIDATOR`."""
    return _UUID.fullmatch(key) is not None


def new_key() -> str:
    """Return a new version 7 UUID, the only kind that endpoints with `late_keys="refuse"` accept."""
    return str(UUID(int=time.time_ns() // 10**6 << 80 | 7 << 76 | uuid4().int % 2**76))


def check_dated(key: str) -> str:
    """Return the key in lower case if it is a version 7 UUID, which contains its creation time.

    Raises `InvalidKey` for any other key.
    """
    if is_uuid(key) and UUID(key).version == 7:
        return key.lower()
    raise InvalidKey(gettext_noop("It must be a UUID of version 7, which says when it was made."))


def is_late(key: str, ttl_seconds: float, now: float) -> bool:
    """Return whether a version 7 UUID is older than `ttl_seconds`, in which case its row may already have been deleted.

    A time more than `MAX_AHEAD` seconds in the future also counts as late. The UUID's first 48 bits are the
    milliseconds since 1970 (RFC 9562 section 5.7). `now` is the database's time in seconds since 1970, because the
    database's clock also decides when a row expires.
    """
    made = (UUID(key).int >> 80) / 1000
    return made < now - ttl_seconds or made > now + MAX_AHEAD
