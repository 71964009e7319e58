"""How does a new version of a comparison rule recognize requests that an earlier version has stored?

# Note [Two versions of a fingerprint]
A release that compares requests differently computes different fingerprints. After an upgrade to it, the retry of an
earlier request would be refused as a different request. Each request is therefore hashed by every rule in `RULES`. The
first rule's hash is stored. A later request matches if any of its hashes equals the stored hash. Two rules never
compute the same hash for different requests.

The two current rules hash the same text. If they write a value differently, the text contains both forms, enclosed in
control characters. Strings contain no such characters, because `ascii()` escapes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .digests import digest

_CHANGED = re.compile("\0([^\0\1\2]*)\1([^\0\1\2]*)\2")
MAX_PLAIN = 64
"""How many digits a number may have before it is written with an exponent. A body of `1e64,1e64,…` becomes at most
16 times as long. Without a limit, a few bytes such as `1e3000000` could fill the memory."""
_LONG = 10**MAX_PLAIN
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


class Fingerprint(NamedTuple):
    """A request's hash by the current rule, and its hashes by earlier rules if those differ."""

    current: bytes
    earlier: tuple[bytes, ...] = ()


class Versioned(str):
    """A part of the text to be hashed. See Note [Two versions of a fingerprint]."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def versioned(current: str, earlier: str) -> Versioned:
    return Versioned(current if current == earlier else f"\0{current}\1{earlier}\2")


def by_value(kind: str, *parts: bytes | str) -> bytes:
    for part in parts:
        if isinstance(part, str) and "\0" in part:
            return _digest_of(r"\1", kind, parts)
    return digest(kind, *parts)


def as_written(kind: str, *parts: bytes | str) -> bytes | None:
    """Hash the parts by the rule of version 0.4.0.

    Return None if this rule writes the parts exactly as `by_value` does, which is true for nearly all requests.
    """
    for part in parts:
        if isinstance(part, str) and "\0" in part:
            return _digest_of(r"\2", kind, parts)
    return None


def _digest_of(form: str, kind: str, parts: tuple[bytes | str, ...]) -> bytes:
    return digest(kind, *[_CHANGED.sub(form, part) if isinstance(part, str) else part for part in parts])


RULES: tuple[Callable[..., bytes | None], ...] = (by_value, as_written)
"""The rules by which this release and earlier ones hash requests, newest first. A new rule goes to the front. It must
also hash a name of its own, so that its hashes never equal another rule's. A rule may be removed in a major version, at
the earliest 35 days (the longest default of `ttl`) after the last release that stored its hashes."""


def fingerprint(kind: str, *parts: bytes | str) -> Fingerprint:
    """Return the fingerprint of the data to compare.

    Args:
        kind: the kind of data, such as "payload". Fingerprints of different kinds are never equal.
        parts: the data. A string may contain `Versioned` values, but no other control characters. Text that may contain
            other control characters is passed as bytes.
    """
    current, *earlier = [hashed for rule in RULES if (hashed := rule(kind, *parts)) is not None]
    return Fingerprint(current, tuple(earlier))


def number(text: str, earlier: str | None = None) -> Versioned:
    """Return a JSON number in its `exact` form.

    Args:
        text: the number as the client or Python's `repr` wrote it.
        earlier: what the previous version of the rule wrote; by default, `text`.

    Raises:
        ValueError: the exponent itself has thousands of digits.
    """
    return versioned(exact(text), text if earlier is None else earlier)


def exact(text: str) -> str:
    """Return the one form that all numbers of the same value share: 1.50 and 15e-1 become 1.5.

    It works on the digits, because floats and `decimal` contexts round values, and expanding an exponent takes memory.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise RuntimeError(f"Bug: {text!r:.100} is not a JSON number.")
    sign, whole, part, exponent = match[1], match[2], match[3] or "", match[4] or "0"
    digits = (whole + part).lstrip("0")
    significant = digits.rstrip("0")
    return _written(sign, significant, int(exponent) - len(part) + len(digits) - len(significant))


def _written(sign: str, digits: str, power: int) -> str:
    """Format a number from its digits (without leading or trailing zeros) and its power of ten."""
    if not digits:
        return "0"
    if max(len(digits) + power, -power, len(digits)) > MAX_PLAIN:
        return f"{sign}{digits}e{power}"
    if power >= 0:
        return f"{sign}{digits}{'0' * power}"
    padded = digits.rjust(1 - power, "0")
    return f"{sign}{padded[:power]}.{padded[power:]}"


def integer(value: int) -> int | Versioned:
    """Return an integer unchanged if it is short. A long integer gets the form of an equal number with an exponent."""
    return value if -_LONG < value < _LONG else number(str(value))
