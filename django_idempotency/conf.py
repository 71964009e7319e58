"""Options of a protected view and the project's `IDEMPOTENCY` setting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, Literal

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .exceptions import IdempotencyConfigurationError

UNSET: Final[Any] = object()
"""An option that is left to the next layer: action, class, base classes, settings, default."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
NOT_FINAL = frozenset({401, 403, 408, 409, 423, 425, 429})
"""Client errors that say "not now" or "not you": the same request may well succeed later."""


def is_final(response: Any) -> bool:
    """The default `record`: below 500 and none of the statuses that a later retry may turn into a success."""
    return response.status_code < 500 and response.status_code not in NOT_FINAL


# eq=False: two layers are the same only if they are one object, which makes them cheap cache keys.
@dataclass(frozen=True, kw_only=True, eq=False)
class Idempotency:
    """How one endpoint is protected.

    What is left out falls through to the next layer. Durations are `timedelta` or seconds. Raises
    `IdempotencyConfigurationError` for values that cannot work.

    ttl: how long the result is kept and replayed, counted from the claim.
    required: without a key the answer is 400; with False the view then runs unprotected.
    methods: the HTTP methods that are protected; others pass through.
    wait: how long a duplicate of a running request waits for its result before the conflict answer.
    in_progress_status: 409 or 429; with a lease also 202, with the `Location` of a status page.
    mismatch_status: 422 or 409.
    lease: None: one transaction around the view. A duration: leased mode, for views that call something outside; how
        long a claim stands when its worker has died.
    on_abandoned: "retry" or "hold": may an external call be made again while nobody knows what became of the first?
    reconcile: `callable(request, operation) -> HttpResponse | None`, asked when an abandoned key is taken over:
        returns the final response, or None to run again.
    scope: `callable(request) -> str`, who is calling.
    anonymous: "shared" or "refuse", for callers without any credential.
    operation: the name of the operation; default: method and route.
    key: `callable(request) -> str | None` that reads the key; default: the header.
    fingerprint: `callable(request) -> bytes`, a tuple of body field names, or None; default: the whole request.
    record: `callable(response) -> bool`, is this outcome final?
    may_replay: `callable(request, …) -> bool`, asked before a replay; False answers 403.
    store_body: False keeps a tombstone instead of the response.
    max_body_bytes: a larger or streaming response leaves a tombstone.
    using: the database alias, which must be the alias of the business write; default: the write alias.
    """

    ttl: timedelta | float = UNSET
    required: bool = UNSET
    methods: Collection[str] = UNSET
    wait: timedelta | float = UNSET
    in_progress_status: Literal[202, 409, 429] = UNSET
    mismatch_status: Literal[409, 422] = UNSET
    lease: timedelta | float | None = UNSET
    on_abandoned: Literal["retry", "hold"] = UNSET
    reconcile: Callable[..., Any] | None = UNSET
    scope: Callable[[Any], str] | None = UNSET
    anonymous: Literal["shared", "refuse"] = UNSET
    operation: str | None = UNSET
    key: Callable[[Any], str | None] | None = UNSET
    fingerprint: Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None = UNSET
    record: Callable[[Any], bool] = UNSET
    may_replay: Callable[..., bool] | None = UNSET
    store_body: bool = UNSET
    max_body_bytes: int = UNSET
    using: str | None = UNSET

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if (problem := _PROBLEMS[name](value)) is not None:
                raise IdempotencyConfigurationError(f"idempotency option {name}={value!r}: {problem}")

    def given(self) -> dict[str, Any]:
        """The options that this layer decides."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not UNSET}

    @property
    def ttl_seconds(self) -> float:
        return _seconds(self.ttl)

    @property
    def wait_seconds(self) -> float:
        return _seconds(self.wait)

    @property
    def lease_seconds(self) -> float | None:
        return None if self.lease is None else _seconds(self.lease)

    @property
    def repeats_calls(self) -> bool:
        """May a call in doubt be made again? Only in leased mode, where it goes out with the same derived key."""
        return self.lease is not None and (self.on_abandoned == "retry" or self.reconcile is not None)


def _seconds(duration: timedelta | float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _duration(minimum: float, text: str) -> Callable[[Any], str | None]:
    def problem(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (timedelta, int, float)):
            return "give a timedelta or a number of seconds."
        seconds = _seconds(value)
        return None if minimum <= seconds <= MAX_SECONDS else text

    return problem


def _lease(value: Any) -> str | None:
    return None if value is None else _duration(0.1, "give at least 0.1 seconds and at most 100 years, or None.")(value)


MAX_SECONDS = 100 * 365 * 86400
"""A century: beyond it some databases cannot add the interval to the clock."""


def _one_of(*allowed: Any) -> Callable[[Any], str | None]:
    choices = " or ".join(repr(value) for value in allowed)
    return lambda value: (
        None if any(value is a or (type(value) is type(a) and value == a) for a in allowed) else f"give {choices}."
    )


def _callable(*, optional: bool = True) -> Callable[[Any], str | None]:
    def problem(value: Any) -> str | None:
        return None if callable(value) or (optional and value is None) else "give a callable."

    return problem


def _name(value: Any) -> str | None:
    return None if value is None or (isinstance(value, str) and value) else "give a non-empty string."


def _methods(value: Any) -> str | None:
    if isinstance(value, str) or not isinstance(value, Collection) or not value:
        return 'give a collection of HTTP methods such as ("POST", "PATCH").'
    if any(not isinstance(method, str) or method != method.upper() for method in value):
        return "write HTTP methods in upper case."
    if safe := sorted(SAFE_METHODS.intersection(value)):
        return f"{', '.join(safe)} must not change anything, so there is nothing to protect."
    return None


def _fingerprint(value: Any) -> str | None:
    if value is None or value == "request" or callable(value):
        return None
    if isinstance(value, tuple) and value and all(isinstance(name, str) for name in value):
        return None
    return 'give a callable(request) -> bytes, a tuple of body field names, "request" or None.'


def _bytes(value: Any) -> str | None:
    return None if type(value) is int and value >= 0 else "give a number of bytes, 0 or more."


_PROBLEMS: dict[str, Callable[[Any], str | None]] = {
    "ttl": _duration(1, "give at least one second and at most 100 years."),
    "required": _one_of(True, False),
    "methods": _methods,
    "wait": _duration(0, "give 0 or more seconds."),
    "in_progress_status": _one_of(409, 429, 202),
    "mismatch_status": _one_of(422, 409),
    "lease": _lease,
    "on_abandoned": _one_of("retry", "hold"),
    "reconcile": _callable(),
    "scope": _callable(),
    "anonymous": _one_of("shared", "refuse"),
    "operation": _name,
    "key": _callable(),
    "fingerprint": _fingerprint,
    "record": _callable(optional=False),
    "may_replay": _callable(),
    "store_body": _one_of(True, False),
    "max_body_bytes": _bytes,
    "using": _name,
}

DEFAULTS = Idempotency(
    ttl=timedelta(hours=24),
    required=True,
    methods=("POST", "PATCH"),
    wait=0,
    in_progress_status=409,
    mismatch_status=422,
    lease=None,
    on_abandoned="retry",
    reconcile=None,
    scope=None,
    anonymous="shared",
    operation=None,
    key=None,
    fingerprint="request",
    record=is_final,
    may_replay=None,
    store_body=True,
    max_body_bytes=1024 * 1024,
    using=None,
)
OPTION_NAMES = tuple(f.name for f in fields(Idempotency))


def unknown_name(kind: str, name: str, known: Collection[str]) -> str:
    """The sentence for a name that does not exist, with the nearest one that does."""
    guess = get_close_matches(name, known, n=1)
    hint = f" Did you mean {guess[0]!r}?" if guess else ""
    return f"unknown {kind} {name!r}.{hint} Known are: {', '.join(known)}."


def as_options(value: Idempotency | Mapping[str, Any]) -> Idempotency:
    """Accept a mapping where an `Idempotency` is expected. Raises `IdempotencyConfigurationError`."""
    if isinstance(value, Idempotency):
        return value
    if not isinstance(value, Mapping):
        raise IdempotencyConfigurationError(f"{value!r} is neither an Idempotency nor a dict of its options.")
    for name in value:
        if name not in OPTION_NAMES:
            raise IdempotencyConfigurationError(unknown_name("idempotency option", str(name), OPTION_NAMES))
    return Idempotency(**value)


@lru_cache(maxsize=1024)
def resolve(*layers: Idempotency) -> Idempotency:
    """Merge the layers, nearest first, over the project's settings and the defaults: every option has a value.

    Cached per layer objects; changing the setting (`override_settings`) empties the cache.
    Raises `IdempotencyConfigurationError` for options that contradict each other.
    """
    merged = DEFAULTS.given()
    for layer in reversed((*layers, settings().options)):
        merged.update(layer.given())
    if merged["lease"] is None:
        for name in LEASED_ONLY:
            # A project's default waits for the views that are leased; a view's own option is a mistake.
            if merged[name] != getattr(DEFAULTS, name) and any(name in layer.given() for layer in layers):
                _refuse_without_lease(name, merged[name])
        if merged["in_progress_status"] == 202:
            merged["in_progress_status"] = 409
    options = Idempotency(**merged)
    if options.lease_seconds is not None and options.ttl_seconds <= options.lease_seconds:
        raise IdempotencyConfigurationError(
            f"idempotency options ttl={options.ttl!r} and lease={options.lease!r}: ttl must exceed lease, or the key "
            "could be forgotten while the view still runs."
        )
    return options


LEASED_ONLY = ("on_abandoned", "reconcile", "in_progress_status")


def _refuse_without_lease(name: str, value: Any) -> None:
    if value != 429:
        raise IdempotencyConfigurationError(
            f"idempotency option {name}={value!r} is about leased mode. Pass lease=timedelta(minutes=2), say, or leave "
            f"{name} out."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The `IDEMPOTENCY` setting: project-wide facts beside the project's default options.

    header: name of the request header that carries the key.
    replayed_header: name of the response header that says "true" or "false".
    docs_url: where the project documents its keys; the problem `type` and the `Link` of error answers.
    key_validator: `callable(key) -> bool`, or its dotted path; False (or a ValidationError) answers 400.
    credential_headers: request headers that identify an anonymous caller, the first one sent wins.
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
            raise IdempotencyConfigurationError(f"IDEMPOTENCY[{name.upper()!r}]: {error}") from error
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


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "IDEMPOTENCY":
        settings.cache_clear()
        resolve.cache_clear()


setting_changed.connect(_forget)
