"""Which options can be set for a protected endpoint? `Idempotency` declares the type, default and check of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ...exceptions import IdempotencyConfigurationError
from ..protocol.outcomes import Verdict
from . import fields as check
from .fields import Unset, declared, option, refuse_impossible, refuse_unknown, seconds_of
from .modes import Mode, fits, mode_of

NOT_FINAL = frozenset({401, 403, 408, 412, 423, 425, 429})
"""Client errors after which the same request can succeed later, perhaps with other credentials or `If-Match`."""


def is_final(response: Any) -> bool:
    """Return whether the status is below 500 and not in `NOT_FINAL`. This is the default of the `record` option."""
    return response.status_code < 500 and response.status_code not in NOT_FINAL


def recorded(value: Any) -> str | None:
    if value == "success" or callable(value):
        return None if value == "success" else check.called(value)
    return 'must be a callable(response) -> bool (in the settings, its dotted path) or "success".'


COMPARED = check.must(
    'must be a callable(request) -> bytes, a tuple of body field names, "request" or None.',
    lambda value: (
        value in (None, "request")
        or callable(value)
        or (isinstance(value, tuple) and value and all(isinstance(name, str) for name in value))
    ),
)

POLLED = check.must(
    "must be 409 or, with a lease, 202. ERROR_RESPONSE can answer with another status.",
    lambda value: type(value) is int and value in (409, 202),
)


OnAbandoned = Literal["retry-keyed", "retry", "hold"]
LEASED_TTL = timedelta(days=35)
"""The default of `ttl` with `lease`. See Note [A key outlives the gateway's memory of it]."""

SHORT_TTL = timedelta(days=7)
"""A shorter `ttl` on a leased endpoint causes a warning, because outboxes and queues redeliver for days."""

# Note [A key outlives the gateway's memory of it] The same key always leads to the same derived key. Suppose that a
# request with that key runs again after `ttl`, while the gateway still remembers the derived key. The gateway answers
# with the first charge, but the view creates another order: one payment buys several orders. Gateways remember keys for
# anything from a few hours to 30 days, and the default is longer; see docs/leased.md for the figures and their sources.


@dataclass(frozen=True, kw_only=True, eq=False)
class Idempotency:
    """The options that a decorator, a class or a setting declares for a protected endpoint.

    If you leave an option out, its value comes from the view class, its base classes or the project's setting, in that
    order. If none of them sets it, the package's default applies. A duration is a `timedelta` or a number of seconds,
    and a list counts as a tuple. Two objects are equal if they set the same options to equal values; a value that
    cannot be hashed is equal only to itself.

    Raises:
        IdempotencyConfigurationError: for unknown names and impossible values.
    """

    ttl: timedelta | float = option(timedelta(hours=24), check.duration(1))
    """How long the result is kept and replayed, counted from the claim. Default: 24 hours; 35 days with a lease. For
    clients that retry after more than a day, and responses that must go sooner.
    """
    required: bool = option(True, check.YES_OR_NO)
    """With True, a request without a key is answered with 400. With False, its view runs unprotected. For endpoints
    whose older clients send no key.
    """
    methods: Collection[str] = option(("POST", "PATCH"), check.METHODS)
    """The HTTP methods that are protected. Others pass through. For endpoints that change something by PUT or DELETE.
    """
    wait: timedelta | float = option(0, check.duration(0))
    """How long a duplicate of a running request waits for that request's result. After that, it gets the conflict
    response. For clients that cannot repeat a request after a conflict, such as browsers.
    """
    in_progress_status: Literal[202, 409] = option(409, POLLED)
    """The status for a duplicate of a running request: 409 or, with a lease, 202, with the
    `Location` of a status page. For work that takes minutes, whose clients poll a page.
    """
    mismatch_status: Literal[409, 422] = option(422, check.one_of(422, 409))
    """The status for a key that is used again with a different payload: 422 or 409. For APIs whose specification
    demands 409.
    """
    lease: timedelta | float | None = option(None, check.or_none(check.duration(0.1)))
    """With None, the view runs in one transaction. A duration selects leased mode, for views with external calls: a
    dead worker's claim expires after that time. For views that call another service, such as a payment gateway.
    """
    on_abandoned: OnAbandoned = option("retry-keyed", check.one_of("retry-keyed", "retry", "hold"))
    """Whether an external call is repeated if the outcome of an earlier attempt is unknown. "retry-keyed" repeats it
    only if each attempt asked for its derived key first, and the called service still remembers that key (see
    `DERIVED_KEYS_LAST`). Otherwise, the client's key waits for `reconcile` or a person. "retry" always repeats the
    call, and "hold" never does. For gateways that ignore keys, and calls that may be repeated.
    """
    backend: str | None = option(None, check.or_none(check.NAME))
    """A name in `BACKENDS`, for a view that writes nothing to the project's databases. The view's keys are kept in that
    store, for example in Redis, and the view runs at least once. Needs `lease`. For views that publish or forward, and
    write nothing to the database.
    """
    reconcile: Callable[[Any], Any] | None = option(None, check.or_none(check.CALLABLE))
    """`callable(operation) -> HttpResponse | None`, called when an abandoned key is taken over. Needs `operation`. It
    returns the final response, or None to run the view again. `operation.request` is the request, or None if
    `recover_idempotency_keys` calls it. For gateways that can be asked what became of a call.
    """
    scope: Callable[[Any], str] | None = option(None, check.or_none(check.called))
    """`callable(request) -> str`, which identifies the caller. For tenants, and callers whom the default cannot tell
    apart.
    """
    anonymous: Literal["shared", "refuse"] = option("shared", check.one_of("shared", "refuse"))
    """Whether callers without any credential share one scope ("shared") or are refused ("refuse"). For endpoints that
    must not answer callers whom nothing identifies.
    """
    operation: str | None = option(None, check.or_none(check.NAME))
    """The name of the operation. Default: method and route. For routes that are renamed or translated, and keys that
    `reconcile` settles.
    """
    key: Callable[[Any], str | None] | None = option(None, check.or_none(check.called))
    """`callable(request) -> str | None` that reads the key. Default: the header. For webhooks and forms, which cannot
    set the header.
    """
    late_keys: Literal["run", "refuse"] = option("run", check.one_of("run", "refuse"))
    """With "refuse", keys must be version 7 UUIDs, and a key without a stored result is refused if it is older than
    `ttl` or dated more than five minutes ahead. For payments that must never run again, however late the retry is.
    """
    fingerprint: Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None = option("request", COMPARED)
    """What a retry must repeat besides the request's target. The target is the method and the path or, with
    `operation`, the method and the URL's arguments. Default: query string, content type and body. With a tuple of
    names, only these fields of the body are compared. `callable(request) -> bytes` returns the bytes to compare in
    place of the body. With None, only the target is compared. For clients that change something in each retry, and
    bodies that cannot be compared.
    """
    record: Callable[[Any], bool] | Literal["success"] = option(is_final, recorded)
    """`callable(response) -> bool`: is this response final? "success" keeps responses with a status below 400, and
    rolls the view back after any other response. For senders that repeat after any error, and views whose errors are
    final.
    """
    may_replay: Callable[..., bool] | None = option(None, check.or_none(check.CALLABLE))
    """`callable(request, …) -> bool`, called before a replay. If it returns False, the answer is 403. For responses
    that their caller may no longer see at the time of a retry.
    """
    store_body: bool = option(True, check.YES_OR_NO)
    """With False, a tombstone is stored instead of the response. With True, a streaming response is refused, because
    the work in its body would not be protected. For responses that hold a secret, and streams.
    """
    max_body_bytes: int = option(1024 * 1024, check.SIZE)
    """For a larger response, or a file, a tombstone is stored. For views with large responses."""
    using: str | None = option(None, check.or_none(check.NAME))
    """The alias of the database that the business write goes to. Default: the key table's write alias. For projects
    with several databases.
    """
    observe: bool = option(False, check.YES_OR_NO)
    """With True, every request runs, and the package only logs which ones it would have refused or replayed. For
    endpoints in use, before they are protected.
    """

    if not TYPE_CHECKING:  # without __new__, the error for an unknown option would not list the known ones

        def __new__(cls, **options):
            for name in options:
                refuse_unknown("idempotency option", name, OPTION_NAMES)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        given = self._given
        for name, value in given.items():
            if isinstance(value, (list, set)):  # the caller may change the list or set later
                given[name] = vars(self)[name] = tuple(value if isinstance(value, list) else sorted(value, key=str))
            refuse_impossible(f"idempotency option {name}={value!r}", OPTIONS[name], given[name])
        if None not in (given.get("ttl"), given.get("lease")) and seconds_of(self.ttl) <= seconds_of(given["lease"]):
            raise IdempotencyConfigurationError(
                f"idempotency options ttl={self.ttl!r} and lease={self.lease!r}: ttl must exceed lease, or the key "
                "could be forgotten while the view still runs."
            )

    @property
    def outlived_by_gateways(self) -> bool:
        """Whether a retry could run the view again while a gateway still remembers the first run's derived keys.

        `late_keys="refuse"` rules that out, because it refuses such a retry.
        """
        short = seconds_of(self.ttl) < SHORT_TTL.total_seconds()
        elsewhere = isinstance(self.backend, str)
        return self.lease is not None and short and self.late_keys != "refuse" and not elsewhere

    # `resolve()` is called with these objects on each request. Each `run_once` call creates a new one.

    @cached_property
    def _value(self) -> tuple[Any, ...]:
        return type(self), *((name, _hashable(value)) for name, value in self._given.items())

    @cached_property
    def _hash(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Idempotency) and self._value == other._value

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        # Cached hashes and values are left out: hashes differ between processes, and values differ in a deep copy.
        return {name: getattr(self, name) for name in OPTION_NAMES}

    def given(self) -> dict[str, Any]:
        """Return the options that were set on this object."""
        return dict(self._given)

    @cached_property
    def _given(self) -> dict[str, Any]:
        return {name: value for name in OPTION_NAMES if (value := getattr(self, name)) is not Unset}


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return value


class Options(Idempotency):
    """One endpoint's options as returned by `resolve()`, each with a value.

    Raises:
        IdempotencyConfigurationError: for options that contradict each other.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        runner = self.runner
        runner.refuse()
        for name, value in self.given().items():
            if not fits(name, value, type(runner)):
                raise IdempotencyConfigurationError(f"idempotency option {name}={value!r} {runner.misfit % name}")
        if self.reconcile is not None and self.operation is None:
            raise IdempotencyConfigurationError(
                f"idempotency option reconcile={self.reconcile!r} needs operation=, because a key stores the name of "
                'its operation, by which the recovery finds reconcile. Pass operation="POST orders", for example.'
            )

    def verdict_on(self, response: Any) -> Verdict:
        """Return what happens to the view's writes and to the key after this response."""
        if response.status_code >= (400 if self.record == "success" else 500):
            return Verdict.ROLL_BACK
        return Verdict.KEEP if self.record == "success" or self.record(response) else Verdict.RELEASE

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
    def runner(self) -> Any:
        """The `Runner` of `execution/` that runs this endpoint's work. This module may not import that class."""
        return mode_of(self.backend, self.lease)(self)

    @cached_property
    def policy(self) -> OnAbandoned | None:
        """`on_abandoned`, or None in atomic mode, which does not use it."""
        return None if self.lease is None else self.on_abandoned


OPTIONS = declared(Idempotency)
OPTION_NAMES = tuple(OPTIONS)


LEASED = Idempotency(lease=0.1, reconcile=None)
"""For code that knows a leased key but not its view: `resolve(LEASED)` gives the project's defaults for leased keys."""


def defaults(mode: type[Mode]) -> dict[str, Any]:
    """Return each option's default in this mode."""
    common = {name: field.metadata["default"] for name, field in OPTIONS.items()}
    return common | {name: possible[0] for name, possible in mode.possible.items()} | dict(mode.default)


def given_by(layers: Iterable[Idempotency]) -> dict[str, Any]:
    """Return the options that the layers set. The layers are passed nearest first, and the nearest takes precedence."""
    given: dict[str, Any] = {}
    for layer in reversed((*layers,)):
        given |= layer.given()
    return given


@lru_cache(maxsize=1024)
def merged(*layers: Idempotency) -> Idempotency:
    """Merge the layers into one."""
    return Idempotency(**given_by(layers))


@lru_cache
def for_methods(*methods: str) -> Idempotency:
    """Return a layer that sets only `methods`."""
    return Idempotency(methods=methods)


def as_options(value: Idempotency | Mapping[str, Any]) -> Idempotency:
    """Convert a mapping of options to a layer, or return an `Idempotency` object unchanged.

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


# These two classes are for type checkers. A test compares them with `Idempotency`.


class OnceKeywords(TypedDict, total=False):
    """The options for `run_once`, `arun_once` and `once`, which work without a request."""

    ttl: timedelta | float
    wait: timedelta | float
    operation: str | None
    using: str | None
    lease: timedelta | float | None
    on_abandoned: OnAbandoned
    backend: str | None
    reconcile: Callable[[Any], Any] | None


class Keywords(OnceKeywords, total=False):
    """The options for `idempotent`: all those of `Idempotency`."""

    required: bool
    methods: Collection[str]
    in_progress_status: Literal[202, 409]
    mismatch_status: Literal[409, 422]
    scope: Callable[[Any], str] | None
    anonymous: Literal["shared", "refuse"]
    key: Callable[[Any], str | None] | None
    late_keys: Literal["run", "refuse"]
    fingerprint: Callable[[Any], bytes] | tuple[str, ...] | Literal["request"] | None
    record: Callable[[Any], bool] | Literal["success"]
    may_replay: Callable[..., bool] | None
    store_body: bool
    max_body_bytes: int
    observe: bool
