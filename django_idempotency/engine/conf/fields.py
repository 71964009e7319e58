"""How one option or setting is declared: its default, the check of its value and its description, in one place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import Field, field, fields
from datetime import timedelta
from difflib import get_close_matches
from textwrap import indent
from typing import Any, Final

Check = Callable[[Any], str | None]
"""Returns None for a possible value, else the sentence that tells the reader what to give."""

MAX_SECONDS = 100 * 365 * 86400
"""A century. Some databases cannot add a longer interval to the clock."""


class _Unset:
    def __reduce__(self) -> str:
        return "UNSET"  # a copy must be the same object, or it would be taken for a value


UNSET: Final[Any] = _Unset()
"""An option that is left to the next layer: action, class, base classes, settings, default."""


def option(default: Any, check: Check, help: str) -> Any:  # noqa: A002 (argparse's word for it)
    """A field of `Idempotency`. Its default applies after all layers, so a layer itself begins as `UNSET`."""
    return field(default=UNSET, metadata={"default": default, "check": check, "help": help})


def setting(default: Any, check: Check, help: str, *, secret: bool = False) -> Any:  # noqa: A002 (as above)
    """A field of `Settings`. No error quotes a secret."""
    return field(default=default, repr=not secret, metadata={"check": check, "help": help})


def declared(cls: Any) -> dict[str, Field[Any]]:
    """The fields of a class that were declared by `option()` or `setting()`, by name."""
    return {f.name: f for f in fields(cls) if "check" in f.metadata}


def described(cls: type) -> str:
    """The docstring of the class, with a section for its declared fields."""
    texts = (f"{name}: {declaration.metadata['help']}" for name, declaration in declared(cls).items())
    lines = [indent(text.replace("\n", "\n    "), "    ") for text in texts]
    return "\n".join([inspect.getdoc(cls) or "", "", "Attributes:", *lines])


def unknown_name(kind: str, name: str, known: Collection[str]) -> str:
    """The sentence for a name that does not exist, with the nearest one that does."""
    guess = get_close_matches(name, known, n=1)
    hint = f" Did you mean {guess[0]!r}?" if guess else ""
    return f"unknown {kind} {name!r}.{hint} Known are: {', '.join(known)}."


def seconds_of(duration: timedelta | float) -> float:
    """A duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def duration(minimum: float) -> Check:
    """A check for a `timedelta` or a number of seconds."""

    def problem(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (timedelta, int, float)):
            return "give a timedelta or a number of seconds."
        possible = minimum <= seconds_of(value) <= MAX_SECONDS
        return None if possible else f"give {minimum} or more seconds, and at most 100 years."

    return problem


def or_none(check: Check) -> Check:
    """A check that also accepts None."""
    return lambda value: None if value is None else check(value)


def one_of(*allowed: Any) -> Check:
    """A check for these values. True is not 1 here, and 1.0 is not 1."""
    choices = " or ".join(repr(value) for value in allowed)
    return lambda value: (
        None if any(value is a or (type(value) is type(a) and value == a) for a in allowed) else f"give {choices}."
    )


def of_type(*types: type) -> Check:
    """A check for instances of these types."""
    names = " or ".join(t.__name__ for t in types)
    return lambda value: None if isinstance(value, types) else f"give a value of type {names}."


def dotted_names(value: Any) -> str | None:
    """A check for dotted names of functions or classes."""
    names = value if isinstance(value, tuple) else ("",)
    if all(isinstance(name, str) and name.rpartition(".")[0] for name in names):
        return None
    return 'give a list of dotted names such as ["shop.decorators.traced"].'


def fernet_keys(value: Any) -> str | None:
    """A check for keys of `cryptography.fernet`. Imports `cryptography` if there is a key."""
    if not isinstance(value, tuple) or not value:
        return "give a list of Fernet keys, with at least one. To switch encryption off, leave the setting out."
    try:
        from cryptography.fernet import Fernet
    except ImportError:
        return "this setting needs the package `cryptography`. Run: pip install cryptography"
    for number, key in enumerate(value, 1):
        try:
            Fernet(key if isinstance(key, str) else "")
        except ValueError:
            return (
                f"entry {number} is no Fernet key. Make one with: "
                'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
            )
    return None


CALLABLE = "give a callable; in the settings, its dotted path will do."


def is_callable(*, awaited: bool = False) -> Check:
    """A check for callables. A coroutine that nobody awaits would count as true."""

    def problem(value: Any) -> str | None:
        if not callable(value):
            return CALLABLE
        if awaited or not any(map(inspect.iscoroutinefunction, (value, type(value).__call__))):
            return None
        return "it is not awaited: give a def function."

    return problem


def takes_one_argument(value: Any) -> str | None:
    """A check for a callable that can be called with one argument: the operation."""
    if not callable(value):
        return CALLABLE
    try:
        inspect.signature(value).bind(None)
    except TypeError:
        return "it is called with one argument, which has the request: write def reconcile(operation)."
    except ValueError:
        pass  # some callables written in C do not show their parameters
    return None


def name_of_something(value: Any) -> str | None:
    """A check for a name, or None."""
    return None if value is None or (isinstance(value, str) and value) else "give a non-empty string."


def address_of_a_page(value: Any) -> str | None:
    """A check for an address that a link may have: of the web, or a path of this site. Never a script."""
    form = r"(https?://|/(?![/\\]))[^\s\x00-\x1f]*"
    return (
        None
        if isinstance(value, str) and re.fullmatch(form, value)
        else 'give an address such as "https://wiki.example.com/runbook", or a path of this site such as "/runbook/".'
    )


def number_of_bytes(value: Any) -> str | None:
    """A check for a size."""
    return None if type(value) is int and value >= 0 else "give a number of bytes, 0 or more."
