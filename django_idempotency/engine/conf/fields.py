"""Which values do options and settings accept?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, field, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from ...exceptions import IdempotencyConfigurationError

Check = Callable[[Any], str | None]
"""Returns None for a valid value, else a sentence that says what a valid one is."""

MAX_SECONDS = 100 * 365 * 86400
"""A century. Some databases cannot add a longer interval to the current time."""


class Unset:
    """Marks an option that is not set in a layer, so that the next layer is consulted.

    The layers are the action, the class, its base classes, the settings and the default.
    """


def option(default: Any, check: Check) -> Any:
    """Declare an option of `Idempotency`. A `Mode` may set another default for the option, or allow fewer values.

    Args:
        default: its value if no layer sets it.
        check: the check that `Idempotency(…)` runs on each value.
    """
    return field(default=Unset, metadata={"default": default, "check": check})


def setting(default: Any, check: Check, *, secret: bool = False) -> Any:
    """Declare a setting. If it is secret, neither its `repr` nor an error about it shows its value."""
    return field(default=default, repr=not secret, metadata={"check": check})


def declared(cls: Any) -> dict[str, Field[Any]]:
    """Return a dict of the fields that a class declares with `option()` or `setting()`."""
    return {f.name: f for f in fields(cls) if "check" in f.metadata}


def refuse_impossible(place: str, declaration: Field[Any], value: Any) -> None:
    """If the declaration does not allow the value, raise `IdempotencyConfigurationError`, naming the `place`."""
    if (problem := declaration.metadata["check"](value)) is not None:
        raise IdempotencyConfigurationError(f"{place}: {problem}")


def refuse_unknown(kind: str, name: str, known: Collection[str]) -> None:
    """If `name` is unknown, raise `IdempotencyConfigurationError`, suggesting a similar known name if there is one."""
    if name not in known:
        guess = get_close_matches(name, known, n=1)
        hint = f" Did you mean {guess[0]!r}?" if guess else ""
        raise IdempotencyConfigurationError(f"unknown {kind} {name!r}.{hint} Known are: {', '.join(known)}.")


def seconds_of(duration: timedelta | float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


# --- the checks


def must(advice: str, possible: Callable[[Any], Any]) -> Check:
    """Return a check that returns `advice` unless `possible` accepts the value."""
    return lambda value: None if possible(value) else advice


def or_none(check: Check) -> Check:
    """Return the check, extended to allow None."""
    return lambda value: None if value is None else check(value)


def one_of(*allowed: Any) -> Check:
    """Return a check that allows only these values, with exactly these types: if 1 is allowed, True and 1.0 are not."""
    known = [(type(value), value) for value in allowed]
    return must(f"must be {' or '.join(map(repr, allowed))}.", lambda value: (type(value), value) in known)


def of_type(kind: type) -> Check:
    return must(f"must be of type {kind.__name__}.", lambda value: isinstance(value, kind))


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
YES_OR_NO = one_of(True, False)
# A list in the settings is converted to a tuple before it is checked.
SEVERAL = must("must be a list or a tuple.", lambda value: isinstance(value, tuple))
NAME = must("must be a non-empty string.", lambda value: isinstance(value, str) and value)
SIZE = must("must be a number of bytes, 0 or more.", lambda value: type(value) is int and value >= 0)
METHODS = must(
    f'must be HTTP methods in upper case, such as ("POST", "PATCH"). {", ".join(sorted(SAFE_METHODS))} must not change '
    "anything, so there is nothing to protect.",
    lambda value: (
        isinstance(value, Collection)
        and not isinstance(value, str)
        and value
        and all(isinstance(name, str) and name.isupper() and name not in SAFE_METHODS for name in value)
    ),
)


def duration(minimum: float) -> Check:
    """Return a check that a `timedelta` or a number of seconds is between `minimum` seconds and 100 years."""

    def possible(value: Any) -> bool:
        known = isinstance(value, (timedelta, int, float)) and not isinstance(value, bool)
        return known and minimum <= seconds_of(value) <= MAX_SECONDS

    return must(f"must be a timedelta or a number of seconds: at least {minimum}, at most 100 years.", possible)


def _is_backend(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) <= {"BACKEND", "OPTIONS"}
        and isinstance(value.get("BACKEND"), str)
        and isinstance(value.get("OPTIONS", {}), Mapping)
    )


BACKENDS = must(
    'must be a dict from names to backends, such as {"events": {"BACKEND": '
    '"django_idempotency.backends.redis.RedisBackend", "OPTIONS": {"url": "redis://localhost"}}}.',
    lambda value: isinstance(value, Mapping) and all(map(_is_backend, value.values())),
)


def encryption_keys(value: Any) -> str | None:
    """Check that a value is a non-empty tuple of Fernet keys.

    `cryptography` is imported only if the tuple is not empty.
    """
    if not isinstance(value, tuple) or not value:
        return "must be a list of at least one Fernet key. To switch encryption off, leave the setting out."
    try:
        from cryptography.fernet import Fernet
    except ImportError:
        return "needs the package `cryptography`. Run: pip install cryptography"
    for number, key in enumerate(value, 1):
        try:
            Fernet(key if isinstance(key, str) else "")
        except ValueError:
            return (
                f"entry {number} is not a Fernet key. Generate one with: "
                'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
            )
    return None


CALLABLE = must("must be a callable or, in the settings, its dotted path.", callable)


def called(value: Any) -> str | None:
    """Check a callable, which must not be `async def`, because its coroutine would always be truthy."""
    if callable(value) and any(map(inspect.iscoroutinefunction, (value, type(value).__call__))):
        return "must be a def function: it is not awaited."
    return CALLABLE(value)


def switch(value: Any) -> str | None:
    """Check that a value is True, False or a callable that decides between them."""
    if callable(value):
        return called(value)
    return None if isinstance(value, bool) else "must be True, False, a callable() -> bool or its dotted path."
