"""The project's `IDEMPOTENCY` setting, and one set of options out of all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ...exceptions import IdempotencyConfigurationError
from .fields import (
    address_of_a_page,
    declared,
    described,
    dotted_names,
    fernet_keys,
    is_callable,
    of_type,
    or_none,
    setting,
    unknown_name,
)
from .options import DEFAULTS, OPTION_NAMES, OPTIONS, Idempotency


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The `IDEMPOTENCY` setting: facts about the whole project, beside the project's default options."""

    header: str = setting("Idempotency-Key", of_type(str), "name of the request header that carries the key.")
    replayed_header: str = setting(
        "Idempotency-Replayed", of_type(str), 'name of the response header that says "true" or "false".'
    )
    docs_url: str | None = setting(
        None,
        or_none(of_type(str)),
        "the page about the project's keys: `type` and `Link` of error answers.",
    )
    key_validator: Callable[[str], Any] | None = setting(
        None, or_none(is_callable()), "`callable(key) -> bool`. False (or a ValidationError) answers 400."
    )
    credential_headers: tuple[str, ...] = setting(
        ("Authorization", "X-Api-Key"),
        of_type(tuple),
        "request headers that identify a caller without a user: all that were sent, together.",
    )
    harmless_decorators: tuple[str, ...] = setting(
        (), dotted_names, "decorators that decide nothing about the caller, and so may stand below the protection."
    )
    error_response: Callable[[Any, Any], Any] | None = setting(
        None, or_none(is_callable()), "`callable(request, problem) -> HttpResponse`: the project's own errors."
    )
    require_quoted_key: bool = setting(False, of_type(bool), "accept only the quoted form of the draft, not bare keys.")
    store_cookies: bool = setting(
        False, of_type(bool), "also keep and replay `Set-Cookie`, which is a stored credential."
    )
    encryption_keys: tuple[str, ...] | None = setting(
        None,
        or_none(fernet_keys),
        "Fernet keys. The first encrypts responses, step results and errors at rest; all decrypt.",
        secret=True,
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
    for given, written in raw.items():
        name = str(given).lower()
        if name.upper() not in SETTING_NAMES:
            raise IdempotencyConfigurationError(unknown_name("IDEMPOTENCY setting", str(given), SETTING_NAMES))
        (options if name in OPTIONS else own)[name] = _value(name, written)
    return Settings(**own, options=Idempotency(**options))


def _value(name: str, written: Any) -> Any:
    """The value of one setting, read and checked. A callable may be written as its dotted path."""
    declaration = _SETTINGS.get(name) or OPTIONS[name]
    check, place = declaration.metadata["check"], f"IDEMPOTENCY[{name.upper()!r}]"
    if declaration.repr:
        place += f"={written!r}"
    value = tuple(written) if isinstance(written, list) else written
    if isinstance(value, str) and "Callable" in str(declaration.type) and check(value) is not None:
        try:
            value = import_string(value)
        except ImportError as error:
            raise IdempotencyConfigurationError(f"{place} cannot be imported: {error}. Correct the path.") from error
    if (problem := check(value)) is not None:
        raise IdempotencyConfigurationError(f"{place}: {problem}")
    return value


@lru_cache(maxsize=1024)
def resolve(*layers: Idempotency) -> Idempotency:
    """Merge the layers, nearest first, over the project's settings and the defaults: every option has a value.

    The result is cached for these layer objects. Changing the setting (`override_settings`) empties the cache.

    Raises:
        IdempotencyConfigurationError: for options that contradict each other.
    """
    merged = DEFAULTS.given()
    for layer in reversed((*layers, get_settings().options)):
        merged.update(layer.given())
    if merged["lease"] is None:
        for name in LEASED_ONLY:
            # A project's default may be meant for its leased views. On a view without a lease it is a mistake.
            if merged[name] != getattr(DEFAULTS, name) and any(name in layer.given() for layer in layers):
                _refuse_without_lease(name, merged[name])
        if merged["in_progress_status"] == 202:
            merged["in_progress_status"] = 409
    elif merged["reconcile"] is not None and merged["operation"] is None:
        raise IdempotencyConfigurationError(
            f"idempotency option reconcile={merged['reconcile']!r} needs operation=, because a key keeps the name of "
            'its operation, and the recovery finds reconcile by it. Pass operation="POST orders", for example.'
        )
    return Idempotency(**merged)


LEASED_ONLY = ("on_abandoned", "reconcile", "in_progress_status")


def _refuse_without_lease(name: str, value: Any) -> None:
    if value != 429:
        raise IdempotencyConfigurationError(
            f"idempotency option {name}={value!r} is about leased mode. Pass lease=timedelta(minutes=2), for example, "
            f"or leave {name} out."
        )


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "IDEMPOTENCY":
        get_settings.cache_clear()
        resolve.cache_clear()


setting_changed.connect(_forget)
