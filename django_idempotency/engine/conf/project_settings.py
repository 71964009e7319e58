"""The project's `IDEMPOTENCY` setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from ...exceptions import IdempotencyConfigurationError
from .fields import (
    address_of_a_page,
    declared,
    described,
    dotted_names,
    duration,
    fernet_keys,
    is_callable,
    of_type,
    or_none,
    seconds_of,
    setting,
    unknown_name,
)
from .options import DEFAULTS, OPTION_NAMES, Idempotency

_CALLABLE = or_none(is_callable("give a callable or its dotted path."))


def _imported(value: Any) -> Any:
    return import_string(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The `IDEMPOTENCY` setting: facts about the whole project, beside the project's default options."""

    header: str = setting("Idempotency-Key", of_type(str), "name of the request header that carries the key.")
    replayed_header: str = setting(
        "Idempotency-Replayed", of_type(str), 'name of the response header that says "true" or "false".'
    )
    docs_url: str | None = setting(
        None,
        of_type(str, type(None)),
        "where the project documents its keys: the problem `type` and the `Link` of error answers.",
    )
    key_validator: Callable[[str], Any] | None = setting(
        None,
        _CALLABLE,
        "`callable(key) -> bool`, or its dotted path. False (or a ValidationError) answers 400.",
        read=_imported,
    )
    credential_headers: tuple[str, ...] = setting(
        ("Authorization", "X-Api-Key"),
        of_type(list, tuple),
        "request headers that identify a caller without a user: all that were sent, together.",
        read=lambda value: tuple(value) if isinstance(value, list) else value,
    )
    harmless_decorators: tuple[str, ...] = setting(
        (),
        dotted_names,
        "dotted names of decorators that decide nothing about who is calling, and so may stand below the protection.",
        read=lambda value: tuple(value) if isinstance(value, list) else value,
    )
    error_response: Callable[[Any, Any], Any] | None = setting(
        None,
        _CALLABLE,
        "`callable(request, problem) -> HttpResponse`, or its dotted path: the project's own errors.",
        read=_imported,
    )
    require_quoted_key: bool = setting(False, of_type(bool), "accept only the quoted form of the draft, not bare keys.")
    store_cookies: bool = setting(
        False, of_type(bool), "also keep and replay `Set-Cookie`, which is a stored credential."
    )
    encryption_keys: tuple[str, ...] | None = setting(
        None,
        or_none(fernet_keys),
        "Fernet keys. The first encrypts responses, step results and errors at rest; all decrypt.",
        read=lambda value: tuple(value) if isinstance(value, list) else value,
        secret=True,
    )
    unsettled_ttl: timedelta | float | None = setting(
        None,
        or_none(duration(0, "give 0 or more seconds, at most 100 years, or None.")),
        "how long a key that needs attention (stuck, or with a call in doubt) is kept beyond its `ttl`.\n"
        "Then `cleanup_idempotency_keys` deletes it, and logs an error for each. None: until a person decides.",
    )
    runbook_url: str | None = setting(
        None,
        or_none(address_of_a_page),
        "where the project's own runbook is: the admin links it beside a key that needs attention.",
    )
    enabled: bool = setting(
        True, of_type(bool), "False lets every request pass through. For a test, never in production."
    )
    options: Idempotency = DEFAULTS

    @property
    def unsettled_seconds(self) -> float | None:
        return None if self.unsettled_ttl is None else seconds_of(self.unsettled_ttl)

    @property
    def header_meta(self) -> str:
        return meta_name(self.header)


@lru_cache(maxsize=64)
def meta_name(header: str) -> str:
    """The name of a request header in `request.META`. Each request asks for the same few."""
    return "HTTP_" + header.upper().replace("-", "_")


_SETTINGS = declared(Settings)
SETTING_NAMES = tuple(name.upper() for name in (*_SETTINGS, *OPTION_NAMES))
Settings.__doc__ = described(Settings)


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Read the `IDEMPOTENCY` setting. Names are upper case, as Django's are. Lower case is accepted too."""
    raw = getattr(django_settings, "IDEMPOTENCY", {})
    if not isinstance(raw, Mapping):
        raise IdempotencyConfigurationError(f"the IDEMPOTENCY setting must be a dict, not {raw!r}.")
    own: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for given, value in raw.items():
        name = str(given).lower()
        if name.upper() not in SETTING_NAMES:
            raise IdempotencyConfigurationError(unknown_name("IDEMPOTENCY setting", str(given), SETTING_NAMES))
        if name in OPTION_NAMES:
            options[name] = value
        else:
            own[name] = _value(name, value)
    return Settings(**own, options=Idempotency(**options))


def _value(name: str, written: Any) -> Any:
    """The value of one setting, read and checked."""
    declaration = _SETTINGS[name].metadata
    place = f"IDEMPOTENCY[{name.upper()!r}]" + (f"={written!r}" if _SETTINGS[name].repr else "")
    try:
        value = declaration["read"](written)
    except ImportError as error:
        raise IdempotencyConfigurationError(f"{place} cannot be imported: {error}. Correct the dotted path.") from error
    if (problem := declaration["check"](value)) is not None:
        raise IdempotencyConfigurationError(f"{place}: {problem}")
    return value
