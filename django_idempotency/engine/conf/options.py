"""This module declares the options of a protected endpoint. `Idempotency(…)` raises an error for a wrong option."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ...exceptions import IdempotencyConfigurationError
from . import fields as check
from .fields import Unset, declared, option, refuse_impossible, refuse_unknown, seconds_of

NOT_FINAL = frozenset({401, 403, 408, 423, 425, 429})
"""Client errors that are not final, because the request can succeed later, or with other credentials."""


def is_final(response: Any) -> bool:
    """This function is the default value of the option `record`. A response is final if its status is below 500, and if
    the set `NOT_FINAL` does not contain this status.
    """
    return response.status_code < 500 and response.status_code not in NOT_FINAL


COMPARED = check.must(
    'give a callable(request) -> bytes, a tuple of body field names, "request" or None.',
    lambda value: (
        value in (None, "request")
        or callable(value)
        or (isinstance(value, tuple) and value and all(isinstance(name, str) for name in value))
    ),
)


LEASED_TTL = timedelta(days=30)
"""The default of `ttl` with `lease`. See Note [A key outlives the gateway's memory of it]."""

SHORT_TTL = timedelta(days=7)
"""A leased endpoint with a shorter `ttl` is warned about. Outboxes and queues deliver again for days."""

# Note [A key outlives the gateway's memory of it]
# A derived key depends on the caller's key alone. If a key runs again after `ttl`, and the gateway still remembers the
# derived key, then the gateway answers with the first charge, and the view makes another order: one payment buys many.
# Gateways remember keys for hours to 30 days; docs/leased.md has the figures and their sources.


# With eq=False, Python compares two `Idempotency` objects by identity and not by their fields. So a dict is fast if its
# keys are `Idempotency` objects.
@dataclass(frozen=True, kw_only=True, eq=False)
class Idempotency:
    """An `Idempotency` object has the options of a protected endpoint.

    If an option is missing, the package looks for it in the view class, and then in the base classes. If no class has
    the option, the package uses the project's setting or the default. A duration is a `timedelta` or a number of
    seconds.

    Raises:
        IdempotencyConfigurationError: for unknown names and impossible values.

    Attributes:
        ttl: how long the result is kept and replayed, counted from the claim. Default: 24 hours; 30 days with a lease.
        required: True answers 400 to a request without a key. With False its view runs unprotected.
        methods: the HTTP methods that are protected. Others pass through.
        wait: how long a duplicate of a running request waits for its result before the conflict answer.
        in_progress_status: 409 or 429. With a lease also 202, with the `Location` of a status page.
        mismatch_status: 422 or 409, for a key that is used again with another payload.
        lease: None runs the view in one transaction. A duration means leased mode, for views with external calls. If a
            worker dies, its claim ends after this duration.
        on_abandoned: whether an external call is repeated while its first outcome is unknown.
        reconcile: `callable(operation) -> HttpResponse | None`, called when an abandoned key is taken over. Needs
            `operation`. Returns the final response. With None, the view runs again. `operation.request` is the request,
            or None when `recover_idempotency_keys` asks.
        scope: `callable(request) -> str`, which identifies the caller.
        anonymous: "shared" or "refuse", for callers without any credential.
        operation: the name of the operation. Default: method and route.
        key: `callable(request) -> str | None` that reads the key. Default: the header.
        late_keys: "refuse": keys must be UUIDs of version 7. A key without a stored result is refused if the key is
            older than `ttl`, or more than five minutes ahead.
        fingerprint: the parts of a request that a retry must repeat. Default: method, path, query string, content type
            and body. A tuple of names compares only these fields of the body. `callable(request) -> bytes` returns
            bytes that are compared in place of the body. None compares nothing.
        record: `callable(response) -> bool`, which returns True if this response is final.
        may_replay: `callable(request, …) -> bool`, called before a replay. False answers 403.
        store_body: False keeps a tombstone instead of the response.
        max_body_bytes: a larger response, or a streaming one, leaves a tombstone.
        using: the database alias of the business write. Default: the write alias.
        observe: True runs each request, and only logs which requests would have been refused or replayed.
    """

    ttl: timedelta | float = option(timedelta(hours=24), check.duration(1))
    required: bool = option(True, check.YES_OR_NO)
    methods: Collection[str] = option(("POST", "PATCH"), check.METHODS)
    wait: timedelta | float = option(0, check.duration(0))
    in_progress_status: Literal[202, 409, 429] = option(409, check.one_of(409, 429, 202))
    mismatch_status: Literal[409, 422] = option(422, check.one_of(422, 409))
    lease: timedelta | float | None = option(None, check.or_none(check.duration(0.1)))
    on_abandoned: Literal["retry", "hold"] = option("retry", check.one_of("retry", "hold"))
    reconcile: Callable[[Any], Any] | None = option(None, check.or_none(check.CALLABLE))
    scope: Callable[[Any], str] | None = option(None, check.or_none(check.called))
    anonymous: Literal["shared", "refuse"] = option("shared", check.one_of("shared", "refuse"))
    operation: str | None = option(None, check.or_none(check.NAME))
    key: Callable[[Any], str | None] | None = option(None, check.or_none(check.called))
    late_keys: Literal["run", "refuse"] = option("run", check.one_of("run", "refuse"))
    fingerprint: Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None = option("request", COMPARED)
    record: Callable[[Any], bool] = option(is_final, check.called)
    may_replay: Callable[..., bool] | None = option(None, check.or_none(check.CALLABLE))
    store_body: bool = option(True, check.YES_OR_NO)
    max_body_bytes: int = option(1024 * 1024, check.SIZE)
    using: str | None = option(None, check.or_none(check.NAME))
    observe: bool = option(False, check.YES_OR_NO)

    if not TYPE_CHECKING:  # without __new__, the error for an unknown option would not list the known options

        def __new__(cls, **options):
            for name in options:
                refuse_unknown("idempotency option", name, OPTION_NAMES)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        given = self.given()
        for name, value in given.items():
            refuse_impossible(f"idempotency option {name}={value!r}", OPTIONS[name], value)
        if None not in (given.get("ttl"), given.get("lease")) and self.ttl_seconds <= (self.lease_seconds or 0):
            raise IdempotencyConfigurationError(
                f"idempotency options ttl={self.ttl!r} and lease={self.lease!r}: ttl must exceed lease, or the key "
                "could be forgotten while the view still runs."
            )

    def given(self) -> dict[str, Any]:
        """Return a dict of the options that were given to this object."""
        return {name: value for name in OPTION_NAMES if (value := getattr(self, name)) is not Unset}

    @cached_property
    def ttl_seconds(self) -> float:
        return seconds_of(self.ttl)

    @cached_property
    def wait_seconds(self) -> float:
        return seconds_of(self.wait)

    @cached_property
    def lease_seconds(self) -> float | None:
        return None if self.lease is None else seconds_of(self.lease)

    @property
    def outlived_by_gateways(self) -> bool:
        """Whether the key may run again while a gateway remembers its derived keys. `late_keys` refuses such a run."""
        short = seconds_of(self.ttl) < SHORT_TTL.total_seconds()
        return self.lease is not None and short and self.late_keys != "refuse"

    @cached_property
    def policy(self) -> Literal["retry", "hold"] | None:
        """Return the option `on_abandoned`, or None in atomic mode. Atomic mode does not use `on_abandoned`."""
        return None if self.lease is None else self.on_abandoned

    @cached_property
    def repeats_calls(self) -> bool:
        """An earlier attempt has made a call whose result is unknown. Return True if a retry may run the work in this
        case.

        In atomic mode, the result is False. A repeated call gets the same derived key as before.
        """
        return self.lease is not None and (self.on_abandoned == "retry" or self.reconcile is not None)


OPTIONS = declared(Idempotency)
OPTION_NAMES = tuple(OPTIONS)
DEFAULTS = Idempotency(**{name: field.metadata["default"] for name, field in OPTIONS.items()})
LEASED = Idempotency(lease=0.1, reconcile=None)
"""For code that has a leased key but not its view: the project's defaults for leased keys are `resolve(LEASED)`."""


@lru_cache
def for_methods(*methods: str) -> Idempotency:
    """Return an `Idempotency` object that sets only the option `methods`.

    The function is cached, so two calls with the same methods return the same object. The cache of the function
    `resolve` works only if the caller passes the same object in each call.
    """
    return Idempotency(methods=methods)


def as_options(value: Idempotency | Mapping[str, Any]) -> Idempotency:
    """Return an `Idempotency` object with the options in `value`. The argument `value` is an `Idempotency` object or a
    mapping.

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


# The classes `OnceKeywords` and `Keywords` tell type checkers the names and the types of the options. A test compares
# both classes with the class `Idempotency`.


class OnceKeywords(TypedDict, total=False):
    """The functions `run_once`, `arun_once` and `once` accept only the options of this class. The function `run_once`
    has no request, so the function accepts no options about requests.
    """

    ttl: timedelta | float
    wait: timedelta | float
    operation: str | None
    using: str | None
    lease: timedelta | float | None
    on_abandoned: Literal["retry", "hold"]
    reconcile: Callable[[Any], Any] | None


class Keywords(OnceKeywords, total=False):
    """This class has all options of the class `Idempotency`. The decorator `idempotent` accepts each option as an
    argument.
    """

    required: bool
    methods: Collection[str]
    in_progress_status: Literal[202, 409, 429]
    mismatch_status: Literal[409, 422]
    scope: Callable[[Any], str] | None
    anonymous: Literal["shared", "refuse"]
    key: Callable[[Any], str | None] | None
    late_keys: Literal["run", "refuse"]
    fingerprint: Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None
    record: Callable[[Any], bool]
    may_replay: Callable[..., bool] | None
    store_body: bool
    max_body_bytes: int
    observe: bool
