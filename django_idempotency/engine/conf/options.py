"""Options of one protected endpoint, each checked by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from ...exceptions import IdempotencyConfigurationError


class _Unset:
    def __reduce__(self) -> str:
        return "UNSET"  # a copy is the same, or it would be taken for a value


UNSET: Final[Any] = _Unset()
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
    observe: claim and log what would have been refused or replayed, and never do it. For a gradual rollout.
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
    observe: bool = UNSET

    if not TYPE_CHECKING:  # a dataclass would not say which names there are

        def __new__(cls, **options):
            for name in options:
                if name not in OPTION_NAMES:
                    raise IdempotencyConfigurationError(unknown_name("idempotency option", name, OPTION_NAMES))
            return super().__new__(cls)

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
    "observe": _one_of(True, False),
}

OPTION_NAMES = tuple(f.name for f in fields(Idempotency))
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
    observe=False,
)


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
        raise IdempotencyConfigurationError(
            f"{value!r} is neither an Idempotency nor a dict of its options. Write Idempotency(ttl=3600), say."
        )
    return Idempotency(**{str(name): given for name, given in value.items()})
