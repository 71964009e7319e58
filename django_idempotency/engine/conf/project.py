"""The project's `IDEMPOTENCY` setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from ...exceptions import IdempotencyConfigurationError
from .options import DEFAULTS, OPTION_NAMES, Idempotency, unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The `IDEMPOTENCY` setting: project-wide facts beside the project's default options.

    header: name of the request header that carries the key.
    replayed_header: name of the response header that says "true" or "false".
    docs_url: where the project documents its keys; the problem `type` and the `Link` of error answers.
    key_validator: `callable(key) -> bool`, or its dotted path; False (or a ValidationError) answers 400.
    credential_headers: request headers that identify an anonymous caller: all that were sent, together.
    error_response: `callable(request, problem) -> HttpResponse`, or its dotted path: the project's own errors.
    require_quoted_key: accept only the quoted form of the draft, not bare keys.
    store_cookies: also keep and replay `Set-Cookie` (a stored credential).
    enabled: False lets every request pass through (for a test, never in production).
    """

    header: str = "Idempotency-Key"
    replayed_header: str = "Idempotency-Replayed"
    docs_url: str | None = None
    key_validator: Callable[[str], Any] | None = None
    credential_headers: tuple[str, ...] = ("Authorization", "X-Api-Key")
    error_response: Callable[[Any, Any], Any] | None = None
    require_quoted_key: bool = False
    store_cookies: bool = False
    enabled: bool = True
    options: Idempotency = DEFAULTS

    @property
    def header_meta(self) -> str:
        return "HTTP_" + self.header.upper().replace("-", "_")


_SETTING_TYPES: dict[str, tuple[type, ...]] = {
    "header": (str,),
    "replayed_header": (str,),
    "docs_url": (str, type(None)),
    "credential_headers": (list, tuple),
    "require_quoted_key": (bool,),
    "store_cookies": (bool,),
    "enabled": (bool,),
}
_DOTTED = ("key_validator", "error_response")
SETTING_NAMES = tuple(
    name.upper() for name in [*(f.name for f in fields(Settings) if f.name != "options"), *OPTION_NAMES]
)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Read the `IDEMPOTENCY` setting. Names are upper case, as Django's are; lower case is taken too."""
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
            own[name] = _setting_value(name, value)
    return Settings(**own, options=Idempotency(**options))


def _setting_value(name: str, value: Any) -> Any:
    if name in _DOTTED:
        try:
            value = import_string(value) if isinstance(value, str) else value
        except ImportError as error:
            raise IdempotencyConfigurationError(
                f"IDEMPOTENCY[{name.upper()!r}]={value!r} cannot be imported: {error}. Correct the dotted path."
            ) from error
        if value is not None and not callable(value):
            raise IdempotencyConfigurationError(
                f"IDEMPOTENCY[{name.upper()!r}]={value!r}: give a callable or its dotted path."
            )
        return value
    if name == "credential_headers" and isinstance(value, (list, tuple)):
        return tuple(value)
    if not isinstance(value, _SETTING_TYPES[name]):
        expected = " or ".join(t.__name__ for t in _SETTING_TYPES[name])
        raise IdempotencyConfigurationError(
            f"IDEMPOTENCY[{name.upper()!r}]={value!r}: give a value of type {expected}."
        )
    return value
