"""This module reads the project's `IDEMPOTENCY` setting.

The project can set options in a decorator, in a view class and in the `IDEMPOTENCY` setting. The function `resolve`
merges all options into one `Idempotency` object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ...exceptions import IdempotencyConfigurationError
from . import fields as check
from .fields import declared, refuse_impossible, refuse_unknown, setting
from .options import DEFAULTS, LEASED_TTL, OPTION_NAMES, OPTIONS, Idempotency


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """This class has all values of the `IDEMPOTENCY` setting. The attribute `options` has the project's default
    options.

    Attributes:
        header: name of the request header that carries the key.
        replayed_header: name of the response header that says "true" or "false".
        docs_url: the project's page about its keys. Error answers link to the page in `type` and `Link`.
        key_validator: `callable(key) -> bool`. False (or a ValidationError) answers 400.
        credential_headers: request headers that identify a caller without a user. All sent headers are used together.
        harmless_decorators: decorators that decide nothing about the caller, so they may stand below the protection.
        error_response: `callable(request, problem) -> HttpResponse`, which makes the project's own error answers.
        require_quoted_key: accept only the quoted form of the draft, not bare keys.
        store_cookies: also keep and replay `Set-Cookie`, which is a stored credential.
        encryption_keys: Fernet keys. The first key encrypts stored responses, step results and errors. All keys can
            decrypt.
        runbook_url: the address of the project's runbook. The admin links to it beside each key that needs attention.
        enabled: False lets every request pass through. For a test, never in production.
    """

    header: str = setting("Idempotency-Key", check.of_type(str))
    replayed_header: str = setting("Idempotency-Replayed", check.of_type(str))
    docs_url: str | None = setting(None, check.or_none(check.of_type(str)))
    key_validator: Callable[[str], Any] | None = setting(None, check.or_none(check.called))
    credential_headers: tuple[str, ...] = setting(("Authorization", "X-Api-Key"), check.SEVERAL)
    harmless_decorators: tuple[str, ...] = setting((), check.SEVERAL)
    error_response: Callable[[Any, Any], Any] | None = setting(None, check.or_none(check.called))
    require_quoted_key: bool = setting(False, check.of_type(bool))
    store_cookies: bool = setting(False, check.of_type(bool))
    encryption_keys: tuple[str, ...] | None = setting(None, check.or_none(check.fernet_keys), secret=True)
    runbook_url: str | None = setting(None, check.or_none(check.of_type(str)))
    enabled: bool = setting(True, check.of_type(bool))
    options: Idempotency = DEFAULTS


@lru_cache(maxsize=64)
def meta_name(header: str) -> str:
    """Return the name that Django gives to a request header in `request.META`."""
    return "HTTP_" + header.upper().replace("-", "_")


_SETTINGS = declared(Settings)
SETTING_NAMES = tuple(name.upper() for name in (*_SETTINGS, *OPTION_NAMES))


LEASED_ONLY = ("on_abandoned", "reconcile", "in_progress_status")


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the values of the `IDEMPOTENCY` setting. The names in `IDEMPOTENCY` can be in upper or lower case."""
    raw = getattr(django_settings, "IDEMPOTENCY", {})
    if not isinstance(raw, Mapping):
        raise IdempotencyConfigurationError(f"the IDEMPOTENCY setting must be a dict, not {raw!r}.")
    own: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for given, written in raw.items():
        name = str(given).lower()
        refuse_unknown("IDEMPOTENCY setting", name.upper(), SETTING_NAMES)
        (options if name in OPTIONS else own)[name] = _value(name, written)
    return Settings(**own, options=Idempotency(**options))


def _value(name: str, written: Any) -> Any:
    """Check one value of the `IDEMPOTENCY` setting, and return the value.

    If the value must be a callable, the project can write the dotted path of the callable instead.
    """
    declaration = _SETTINGS.get(name) or OPTIONS[name]
    place = f"IDEMPOTENCY[{name.upper()!r}]" + (f"={written!r}" if declaration.repr else "")
    value = tuple(written) if isinstance(written, list) else written
    if isinstance(value, str) and "Callable" in str(declaration.type) and declaration.metadata["check"](value):
        try:
            value = import_string(value)
        except ImportError as error:
            raise IdempotencyConfigurationError(f"{place} cannot be imported: {error}. Correct the path.") from error
    refuse_impossible(place, declaration, value)
    return value


@lru_cache(maxsize=1024)
def resolve(*layers: Idempotency) -> Idempotency:
    """Merge all layers of options with the `IDEMPOTENCY` setting and the package's defaults.

    If several layers set the same option, the value comes from the layer that comes first in this list.

    The merged options are cached for each combination of layers. When a test changes the `IDEMPOTENCY` setting, the
    cache is emptied.

    Raises:
        IdempotencyConfigurationError: for options that contradict each other.
    """
    merged = DEFAULTS.given()
    for layer in reversed((*layers, get_settings().options)):
        merged.update(layer.given())
    if merged["lease"] is None:
        for name in LEASED_ONLY:
            # Some options are only for views with a lease. The `IDEMPOTENCY` setting can contain options for leased
            # mode even if it contains no `lease`, because a view can set its own `lease`. But a view without a lease
            # must not set `on_abandoned="hold"`, `reconcile` or `in_progress_status=202`.
            if merged[name] not in (429, getattr(DEFAULTS, name)) and any(name in layer.given() for layer in layers):
                raise IdempotencyConfigurationError(
                    f"idempotency option {name}={merged[name]!r} is about leased mode. Pass "
                    f"lease=timedelta(minutes=2), for example, or leave {name} out."
                )
        if merged["in_progress_status"] == 202:
            merged["in_progress_status"] = 409
    elif not any("ttl" in layer.given() for layer in (*layers, get_settings().options)):
        merged["ttl"] = LEASED_TTL
    if merged["lease"] is not None and merged["reconcile"] is not None and merged["operation"] is None:
        raise IdempotencyConfigurationError(
            f"idempotency option reconcile={merged['reconcile']!r} needs operation=, because a key keeps the name of "
            'its operation, and the recovery finds reconcile by it. Pass operation="POST orders", for example.'
        )
    return Idempotency(**merged)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "IDEMPOTENCY":
        get_settings.cache_clear()
        resolve.cache_clear()


setting_changed.connect(_forget)
