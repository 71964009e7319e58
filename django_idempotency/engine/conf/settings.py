"""What does the project's `IDEMPOTENCY` setting contain, and which options apply to an endpoint?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, lru_cache, partial
from threading import RLock
from typing import Any, cast

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ...backends import KeyValueBackend
from ...exceptions import IdempotencyConfigurationError
from ...limits import alone
from . import fields as check
from .fields import declared, refuse_impossible, refuse_unknown, setting
from .modes import Mode, fits, mode_of
from .options import OPTION_NAMES, OPTIONS, Idempotency, Options, defaults, given_by

SENT_CREDENTIALS = ("Authorization", "X-Api-Key", "X-Session-Token", "X-Access-Token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of the `IDEMPOTENCY` setting; `options` holds the project's default options.

    Attributes:
        header: the request header that carries the key. For APIs whose clients send the key in another header.
        replayed_header: the response header that says whether the response is a replay: "true" or "false". For APIs
            whose specification names another header.
        docs_url: the project's page about its keys, to which error responses link in `type` and `Link`. For APIs with
            documentation for their clients.
        key_validator: `callable(key) -> bool`. If it returns False or raises a ValidationError, the request gets 400.
            For APIs that demand UUIDs, or a format of their own.
        credential_headers: request headers that identify a caller without a user. All those that a request carries are
            used together. For APIs with a credential in a header of their own.
        harmless_decorators: decorators that decide nothing about the caller, and may go below the protection. For
            projects whose own decorators stand below the protection.
        error_response: `callable(request, problem) -> HttpResponse`, which makes the project's own error responses. For
            APIs with an error format of their own.
        store_cookies: also store and replay `Set-Cookie`. The table then contains credentials. For views whose cookies
            a retry must get again.
        encryption_keys: Fernet keys. The first encrypts stored responses, step results and errors; any of them can
            decrypt this data. For responses that nobody may read in a dump of the database.
        derived_keys_last: how long the systems that you call remember a derived key. With "retry-keyed", a call in
            doubt that was first started longer ago than this is not repeated. For gateways that remember keys for
            more or less than a day.
        namespace: a part of each derived key, so that deployments that share one gateway account derive different keys.
            If it changes, calls in doubt are made twice. For deployments that share one account at a gateway.
        prepared_statements: False sends each claim to PostgreSQL as SQL text, for proxies that reserve a connection for
            a client that prepares statements. For RDS Proxy, and proxies like it.
        backends: stores for keys outside the database, each under a name for the `backend` option. Each is a dict with
            BACKEND, the dotted path of a `KeyValueBackend`, and OPTIONS, the arguments of that class. For projects that
            set `backend` somewhere.
        enabled: False lets every request pass through. Use it in tests, never in production. For tests that are about
            something else.
        paused: with True, or a callable() that returns True, every request to a protected endpoint gets 503. For
            operators, during a restore or a migration of the key table.
    """

    header: str = setting("Idempotency-Key", check.of_type(str))
    replayed_header: str = setting("Idempotency-Replayed", check.of_type(str))
    docs_url: str | None = setting(None, check.or_none(check.of_type(str)))
    key_validator: Callable[[str], Any] | None = setting(None, check.or_none(check.called))
    credential_headers: tuple[str, ...] = setting(SENT_CREDENTIALS, check.SEVERAL)
    harmless_decorators: tuple[str, ...] = setting((), check.SEVERAL)
    error_response: Callable[[Any, Any], Any] | None = setting(None, check.or_none(check.called))
    store_cookies: bool = setting(False, check.of_type(bool))
    encryption_keys: tuple[str, ...] | None = setting(None, check.or_none(check.encryption_keys), secret=True)
    derived_keys_last: timedelta | float = setting(timedelta(hours=23), check.duration(0))
    namespace: str = setting("", check.of_type(str))
    prepared_statements: bool = setting(True, check.of_type(bool))
    backends: Mapping[str, Mapping[str, Any]] | None = setting(None, check.or_none(check.BACKENDS), secret=True)
    enabled: bool = setting(True, check.of_type(bool))
    paused: bool | Callable[[], Any] = setting(False, check.switch)
    options: Idempotency = Idempotency()  # noqa: RUF009 (frozen)

    def pauses(self) -> bool:
        """Return whether requests are paused.

        If `paused` is a callable that fails, its error reaches the caller, and nothing runs.
        """
        return bool(self.paused() if callable(self.paused) else self.paused)


@lru_cache(maxsize=64)
def meta_name(header: str) -> str:
    """Return a request header's name in `request.META`."""
    return "HTTP_" + header.upper().replace("-", "_")


_MAKING = RLock()
_SETTINGS = declared(Settings)
SETTING_NAMES = tuple(name.upper() for name in (*_SETTINGS, *OPTION_NAMES))


REMOVED = {
    "publishable_keys": "Leave the header of such a key out of CREDENTIAL_HEADERS, or pass scope=callable(request).",
    "require_quoted_key": "Set KEY to a function that refuses bare keys: see docs/options.md.",
    "runbook_url": "Extend the admin's template: see docs/options.md.",
}
"""What replaces each setting of 0.4.0 that no longer exists, by name."""


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the values of the `IDEMPOTENCY` setting, whose names may be in upper or lower case."""
    raw = getattr(django_settings, "IDEMPOTENCY", {})
    if not isinstance(raw, Mapping):
        raise IdempotencyConfigurationError(f"the IDEMPOTENCY setting must be a dict, not {raw!r}.")
    own: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for given, written in raw.items():
        name = str(given).lower()
        if (advice := REMOVED.get(name)) is not None:
            raise IdempotencyConfigurationError(f"the IDEMPOTENCY setting {name.upper()!r} no longer exists. {advice}")
        refuse_unknown("IDEMPOTENCY setting", name.upper(), SETTING_NAMES)
        if name == "operation":
            raise IdempotencyConfigurationError(
                f"IDEMPOTENCY[{name.upper()!r}]={written!r}: with one name for all operations, a key of one would be "
                "answered with the response of another. Pass operation= to the decorator, the class or the call."
            )
        if name == "backend":
            raise IdempotencyConfigurationError(
                f"IDEMPOTENCY[{name.upper()!r}]={written!r}: a view that writes to the database would get its keys "
                "outside of it, too, and would write twice. Pass backend= to each endpoint that writes nothing."
            )
        (options if name in OPTIONS else own)[name] = _value(name, written)
    return Settings(**own, options=Idempotency(**options))


def _value(name: str, written: Any) -> Any:
    """Check a value of the setting, importing a callable from its dotted path."""
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
def resolve(*layers: Idempotency) -> Options:
    """Merge the layers with the `IDEMPOTENCY` setting and the defaults. The first layer takes precedence.

    The options that the layers set must be compatible with each other. The setting, in contrast, applies to all kinds
    of endpoints, so its options that do not fit this endpoint are ignored. Examples are leased-mode options if the
    endpoint has no lease, and `reconcile` if it has no `operation`.

    The result is cached for each combination of layers until a test changes the setting.
    """
    given, project = given_by(layers), get_settings().options.given()
    mode = mode_of(given.get("backend"), given.get("lease", project.get("lease")))
    project = {name: value for name, value in project.items() if fits(name, value, mode)}
    if given.get("operation") is None:
        project.pop("reconcile", None)
    return Options(**defaults(mode) | project | given)


@lru_cache(maxsize=1024)
def place_of_keys(*layers: Idempotency) -> Mode:
    """Return the mode of layers that may be incomplete. Use it only to find out where the keys are stored.

    Some options of a class are valid only together with an option of its handler. For example, a class may set
    `on_abandoned`, which needs the `lease` that its handler sets. `resolve` would refuse the options of the class
    alone.
    """
    given = get_settings().options.given() | given_by(layers)
    place = Idempotency(backend=given.get("backend"), using=given.get("using"))
    return mode_of(place.backend, given.get("lease"))(place)


def backend_for(name: str) -> KeyValueBackend:
    """Return the backend with this name. It is created on first use, without connecting to its server.

    Raises:
        IdempotencyConfigurationError: `BACKENDS` has no such name, or the class that it names isn't a backend.
    """
    # Without the lock, two threads could make two backends, each with its own memory.
    return cast(KeyValueBackend, alone(_MAKING, partial(_made, name)))


@cache
def _made(name: str) -> KeyValueBackend:
    configured = get_settings().backends or {}
    if name not in configured:
        known = ", ".join(map(repr, configured)) or "none"
        raise IdempotencyConfigurationError(
            f"idempotency option backend={name!r}: IDEMPOTENCY['BACKENDS'] has no such name. Known are: {known}."
        )
    path, place = configured[name]["BACKEND"], f"IDEMPOTENCY['BACKENDS'][{name!r}]"
    try:
        kind = import_string(path)
    except ImportError as error:
        raise IdempotencyConfigurationError(f"{place}: {path!r} cannot be imported: {error}.") from error
    if not (isinstance(kind, type) and issubclass(kind, KeyValueBackend)):
        raise IdempotencyConfigurationError(f"{place}: {path!r} is not a subclass of KeyValueBackend.")
    try:
        return kind(**configured[name].get("OPTIONS", {}))
    except (TypeError, ValueError) as error:
        raise IdempotencyConfigurationError(f"{place}: OPTIONS do not fit {path!r}: {error}.") from error


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "IDEMPOTENCY":
        get_settings.cache_clear()
        resolve.cache_clear()
        place_of_keys.cache_clear()
        _made.cache_clear()


setting_changed.connect(_forget)
