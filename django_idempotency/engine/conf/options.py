"""Options of one protected endpoint, each checked by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ...exceptions import IdempotencyConfigurationError
from .fields import (
    UNSET,
    declared,
    described,
    duration,
    is_callable,
    name_of_something,
    number_of_bytes,
    one_of,
    option,
    or_none,
    seconds_of,
    takes_one_argument,
    unknown_name,
)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
NOT_FINAL = frozenset({401, 403, 408, 423, 425, 429})
"""Client errors that mean "not now" or "not you": the same request may succeed later."""


def is_final(response: Any) -> bool:
    """The default `record`: below 500 and none of the statuses that a later retry may turn into a success."""
    return response.status_code < 500 and response.status_code not in NOT_FINAL


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Choose what is compared with the first request, for the option `fingerprint`.

    Method, path, content type and the rest of the body count as with `fingerprint="request"`.

    Args:
        fields: the names in the body that count. Default: all. If the body has none of them, all of it counts.
        exclude: the names in the body that do not count, such as a time stamp that each retry renews.
        query: False leaves the query string out.

    Raises:
        IdempotencyConfigurationError: for impossible names.
    """

    fields: tuple[str, ...] | list[str] | None = None
    exclude: tuple[str, ...] | list[str] = ()
    query: bool = True

    def __post_init__(self) -> None:
        if self.fields is not None:
            _refuse_impossible("fields", self.fields, self.fields)
        _refuse_impossible("exclude", self.exclude, True)
        if self.query not in (True, False):
            raise IdempotencyConfigurationError(f"Fingerprint(query={self.query!r}): give True or False.")


def _refuse_impossible(argument: str, names: Any, enough: Any) -> None:
    if isinstance(names, (tuple, list)) and enough and all(isinstance(name, str) and _is_name(name) for name in names):
        return
    raise IdempotencyConfigurationError(
        f'Fingerprint({argument}={names!r}): give a tuple of names in the body, such as ("trace_id", "meta.sent_at").'
    )


def _is_name(name: str) -> bool:
    return all(name.split("."))


YES_OR_NO = one_of(True, False)


def _methods(value: Any) -> str | None:
    if isinstance(value, str) or not isinstance(value, Collection) or not value:
        return 'give a collection of HTTP methods such as ("POST", "PATCH").'
    if any(not isinstance(method, str) or method != method.upper() for method in value):
        return "write HTTP methods in upper case."
    if safe := sorted(SAFE_METHODS.intersection(value)):
        return f"{', '.join(safe)} must not change anything, so there is nothing to protect."
    return None


def _fingerprint(value: Any) -> str | None:
    if value is None or value == "request" or callable(value) or isinstance(value, Fingerprint):
        return None
    if isinstance(value, tuple) and value and all(isinstance(name, str) for name in value):
        return None
    return 'give a Fingerprint, a callable(request) -> bytes, a tuple of body field names, "request" or None.'


# eq=False: two layers are the same only if they are one object, which makes them cheap cache keys.
@dataclass(frozen=True, kw_only=True, eq=False)
class Idempotency:
    """How one endpoint is protected.

    An option that is left out falls through to the next layer. Durations are `timedelta` or seconds.

    Raises:
        IdempotencyConfigurationError: for unknown names and impossible values.
    """

    ttl: timedelta | float = option(
        timedelta(hours=24), duration(1), "how long the result is kept and replayed, counted from the claim."
    )
    required: bool = option(
        True, YES_OR_NO, "a request without a key is answered with 400. With False its view runs unprotected."
    )
    methods: Collection[str] = option(
        ("POST", "PATCH"), _methods, "the HTTP methods that are protected. Others pass through."
    )
    wait: timedelta | float = option(
        0, duration(0), "how long a duplicate of a running request waits for its result before the conflict answer."
    )
    in_progress_status: Literal[202, 409, 429] = option(
        409, one_of(409, 429, 202), "409 or 429. With a lease also 202, with the `Location` of a status page."
    )
    mismatch_status: Literal[409, 422] = option(422, one_of(422, 409), "422 or 409.")
    lease: timedelta | float | None = option(
        None,
        or_none(duration(0.1)),
        "None: one transaction around the view. A duration: leased mode, for views that call an external service.\n"
        "The duration says how long a claim stands when its worker has died.",
    )
    on_abandoned: Literal["retry", "hold"] = option(
        "retry", one_of("retry", "hold"), "may an external call be made again while its first outcome is unknown?"
    )
    reconcile: Callable[[Any], Any] | None = option(
        None,
        or_none(takes_one_argument),
        "`callable(operation) -> HttpResponse | None`, called when an abandoned key is taken over. Needs `operation`.\n"
        "Returns the final response, or None to run again. `operation.request` is the request, or None when\n"
        "`recover_idempotency_keys` asks.",
    )
    scope: Callable[[Any], str] | None = option(
        None, or_none(is_callable()), "`callable(request) -> str`, which identifies the caller."
    )
    anonymous: Literal["shared", "refuse"] = option(
        "shared", one_of("shared", "refuse"), '"shared" or "refuse", for callers without any credential.'
    )
    operation: str | None = option(None, name_of_something, "the name of the operation. Default: method and route.")
    key: Callable[[Any], str | None] | None = option(
        None, or_none(is_callable()), "`callable(request) -> str | None` that reads the key. Default: the header."
    )
    late_keys: Literal["run", "refuse"] = option(
        "run",
        one_of("run", "refuse"),
        '"refuse": keys must be UUIDs of version 7. A key that is older than `ttl`, or more than five minutes ahead,\n'
        "and has no stored result is refused, and its request does not run again.",
    )
    fingerprint: Fingerprint | Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None = option(
        "request",
        _fingerprint,
        "what a retry must repeat. Default: method, path, query string, content type and body.\n"
        "A `Fingerprint` leaves parts out. A tuple of names compares these fields of the body, as\n"
        "`Fingerprint(fields=…)` does. `callable(request) -> bytes`: what it returns. With None, nothing is compared.",
    )
    record: Callable[[Any], bool] = option(
        is_final, is_callable(), "`callable(response) -> bool`: is this outcome final?"
    )
    may_replay: Callable[..., bool] | None = option(
        None,
        or_none(is_callable(awaited=True)),
        "`callable(request, …) -> bool`, called before a replay. False answers 403.",
    )
    store_body: bool = option(True, YES_OR_NO, "False keeps a tombstone instead of the response.")
    max_body_bytes: int = option(
        1024 * 1024, number_of_bytes, "a larger response, or a streaming one, leaves a tombstone."
    )
    using: str | None = option(
        None, name_of_something, "the database alias of the business write. Default: the write alias."
    )
    observe: bool = option(
        False, YES_OR_NO, "claim and log what would have been refused or replayed, but do neither: a gradual rollout."
    )

    if not TYPE_CHECKING:  # a dataclass would not say which names exist

        def __new__(cls, **options):
            for name in options:
                if name not in OPTION_NAMES:
                    raise IdempotencyConfigurationError(unknown_name("idempotency option", name, OPTION_NAMES))
            return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if (problem := OPTIONS[name].metadata["check"](value)) is not None:
                raise IdempotencyConfigurationError(f"idempotency option {name}={value!r}: {problem}")
        given = self.given()
        if None not in (given.get("ttl"), given.get("lease")) and self.ttl_seconds <= (self.lease_seconds or 0):
            raise IdempotencyConfigurationError(
                f"idempotency options ttl={self.ttl!r} and lease={self.lease!r}: ttl must exceed lease, or the key "
                "could be forgotten while the view still runs."
            )

    def given(self) -> dict[str, Any]:
        """The options that this layer decides."""
        return {name: value for name in OPTION_NAMES if (value := getattr(self, name)) is not UNSET}

    @cached_property
    def ttl_seconds(self) -> float:
        return seconds_of(self.ttl)

    @cached_property
    def wait_seconds(self) -> float:
        return seconds_of(self.wait)

    @cached_property
    def lease_seconds(self) -> float | None:
        return None if self.lease is None else seconds_of(self.lease)

    @cached_property
    def policy(self) -> Literal["retry", "hold"] | None:
        """`on_abandoned`, where it has a meaning."""
        return None if self.lease is None else self.on_abandoned

    @cached_property
    def repeats_calls(self) -> bool:
        """May a call in doubt be made again? Only in leased mode, where the call repeats the same derived key."""
        return self.lease is not None and (self.on_abandoned == "retry" or self.reconcile is not None)


OPTIONS = declared(Idempotency)
OPTION_NAMES = tuple(OPTIONS)
DEFAULTS = Idempotency(**{name: field.metadata["default"] for name, field in OPTIONS.items()})
Idempotency.__doc__ = described(Idempotency)


@lru_cache
def for_methods(*methods: str) -> Idempotency:
    """The layer that protects these methods only. Always the same object, because layers are cache keys."""
    return Idempotency(methods=methods)


def as_options(value: Idempotency | Mapping[str, Any]) -> Idempotency:
    """Accept a mapping where an `Idempotency` is expected.

    Raises:
        IdempotencyConfigurationError: for anything else, unknown names and impossible values.
    """
    if isinstance(value, Idempotency):
        return value
    if not isinstance(value, Mapping):
        raise IdempotencyConfigurationError(
            f"{value!r} is neither an Idempotency nor a dict of its options. Write Idempotency(ttl=3600), for example."
        )
    return Idempotency(**{str(name): given for name, given in value.items()})


# --- the options as keyword arguments, which type checkers read here and nowhere else. A test compares them.


class UnleasedKeywords(TypedDict, total=False):
    """Options that need neither a request nor a lease."""

    ttl: timedelta | float
    wait: timedelta | float
    operation: str | None
    using: str | None


class OnceKeywords(UnleasedKeywords, total=False):
    """Options that need no request: those of `run_once`, `arun_once` and `once`."""

    lease: timedelta | float | None
    on_abandoned: Literal["retry", "hold"]
    reconcile: Callable[[Any], Any] | None


class Keywords(OnceKeywords, total=False):
    """All options: the fields of `Idempotency`."""

    required: bool
    methods: Collection[str]
    in_progress_status: Literal[202, 409, 429]
    mismatch_status: Literal[409, 422]
    scope: Callable[[Any], str] | None
    anonymous: Literal["shared", "refuse"]
    key: Callable[[Any], str | None] | None
    late_keys: Literal["run", "refuse"]
    fingerprint: Fingerprint | Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None
    record: Callable[[Any], bool]
    may_replay: Callable[..., bool] | None
    store_body: bool
    max_body_bytes: int
    observe: bool
