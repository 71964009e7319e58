"""`run_once`: protection for work that arrives without an `Idempotency-Key` header.

Examples are webhooks, queue consumers, management commands and tasks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Generic, TypeVar, Unpack, overload
from uuid import UUID

from ... import exceptions
from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, OnceKeywords, as_options, get_settings, resolve
from ..conf.fields import refuse_unknown
from ..events import report_unprotected
from ..protocol import outcomes
from ..protocol.digests import Identity, identify
from ..protocol.key_syntax import InvalidKey, check_key
from ..protocol.outcomes import Finished, Snapshot, Verdict
from .bridge import in_thread, synchronous
from .claiming import claim_request_for
from .memory import tell_handed_on
from .operation import Operation
from .payloads import payload_fingerprint
from .results import as_stored, decode, encode
from .runners import Runner, Work

logger = logging.getLogger("django_idempotency")
T = TypeVar("T")
Key = str | int | UUID
JSON = (("Content-Type", "application/json"),)
NOT_RUN: dict[type, tuple[type[exceptions.NotRun], str]] = {
    outcomes.Mismatched: (exceptions.PayloadMismatch, "was used for another payload, whose work may have run."),
    outcomes.Conflicted: (exceptions.OperationInProgress, "is being run right now. Try again later."),
    outcomes.InDoubt: (exceptions.OutcomeUnknown, "was interrupted, and its outcome is unknown. A person has to look."),
    outcomes.Unavailable: (exceptions.StoreBusy, "could not be claimed or stored. Nothing was done. Try again later."),
}
UNDECIDED = "was interrupted, and reconcile does not know its outcome yet ({}). Try again later."
PATIENCE = 60
"""How many seconds a duplicate waits inside `@once`. The caller is a task queue, and many queues treat an exception as
the end of the task and never deliver it again. A minute outlasts most single-transaction work, and stays below the
queues' own limits: 5 minutes between two polls (Kafka), 10 minutes per task (dramatiq), an hour until redelivery
(Celery on Redis)."""
STORED_AS = ({"value"}, {"model", "pk", "using"})
"""The names in the JSON object that stores a result: one of these two sets. If a person completes a key with a value of
their own, that value is stored without such an object."""
DONE = 200
"""The status code stored with a result, so that its row looks like a response's row."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What `run_once` returns.

    Args:
        value: what the work returned, converted to JSON and back, or a model instance.
        replayed: True if the work ran earlier and this is its stored result.
    """

    value: T
    replayed: bool


def run_once(
    work: Callable[..., T], *, scope: str, key: Key, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[T]:
    """Run `work` once for this scope, operation and key. Later calls return its stored result.

    Without a `lease`, the work and its result are committed together: in a savepoint if you already have a
    transaction open, otherwise in a transaction of their own. `work` is passed an `Operation` if it has a required
    parameter named `operation`. With a `lease`, `work(operation)` is called with no transaction open. Work that raises
    an exception may run again on a later call.

    Args:
        scope: who owns the key, such as "stripe" or "user:17".
        key: 1 to 255 visible ASCII characters, an int or a UUID, such as an event's id.
        payload: bytes or JSON. Using the key again with a different payload raises `PayloadMismatch`. Numbers, Decimals
            and aware datetimes are compared by value.
        options: `operation` (default: the dotted name of `work`), `ttl`, `wait`, `lease`, `on_abandoned`, `reconcile`,
            `using`, `backend`.

    Returns:
        The result of the work, new or replayed.

    Raises:
        OperationInProgress: another worker is running the same operation.
        OutcomeUnknown: an external call is in doubt, and must not be made twice.
        PayloadMismatch: the key was used before, with a different payload.
        StoreBusy: the database did not answer in time, or cannot be reached or written to; or `PAUSED` is on.
        InvalidKey: the key is not valid. This is a ValueError.
        ResultNotStorable: the result is neither JSON nor a saved model instance.
        ResultLost: the work ran earlier, and its result was too long for the `backend`.
        IdempotencyConfigurationError: an argument is invalid, or the call is made where it cannot work.
    """
    resolved = resolve(once_options(options))
    runner: Runner = resolved.runner
    function, conf = _Function(work, resolved.reconcile, runner.has_steps), get_settings()
    name = operation_name(work, resolved.operation)
    if conf.paused and runner.pauses(name):
        raise exceptions.StoreBusy(f"IDEMPOTENCY['PAUSED'] is on, so {name} did not run. Try again later.")
    identity = _identity(scope, name, key)
    fingerprint = None if payload is None else payload_fingerprint(payload)
    if not conf.enabled:
        report_unprotected(name)
        return Result(runner.bare(partial(function.bare, name, runner.without_key(name, identity))), replayed=False)
    warn_of_gateways(name, resolved)
    outcome = runner.perform(claim_request_for(resolved, identity, fingerprint), function)
    if runner.limits_results and isinstance(outcome, outcomes.Completed) and outcome.snapshot.body is None:
        raise exceptions.ResultLost(
            f"{name} with key {identity.key!r} has run, and its result was too long for the backend "
            f"{resolved.backend!r}. It is not run again. Return less, such as an id."
        )
    return _result(outcome, identity)


@overload
async def arun_once(
    work: Callable[..., Awaitable[T]], *, scope: str, key: Key, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[T]: ...


@overload
async def arun_once(
    work: Callable[..., T], *, scope: str, key: Key, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[T]: ...


async def arun_once(
    work: Callable[..., Any], *, scope: str, key: Key, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[Any]:
    """`run_once` for asynchronous callers.

    Args:
        work: a `def` or `async def` function. Without a `lease`, either kind runs inside the transaction.
    """
    options.setdefault("operation", operation_name(work, options.get("operation")))

    def run(form: Callable[..., Any]) -> Result[Any]:
        return run_once(form, scope=scope, key=key, payload=payload, **options)

    return await in_thread(run, work if iscoroutinefunction(work) else synchronous(work))


def warn_of_gateways(operation: str, options: Idempotency) -> None:
    """Log that gateways may remember derived keys for longer than the package keeps the operation's own keys."""
    if options.outlived_by_gateways:
        _warn_once(operation, repr(options.ttl))


@lru_cache(maxsize=1024)
def _warn_once(operation: str, ttl: str) -> None:
    logger.warning(
        "%s: ttl=%s with a lease. After ttl the same key runs again, a gateway that still knows its derived "
        "key answers with the first charge, and one payment buys two orders. Leave ttl out, which means 35 days.",
        operation,
        ttl,
    )


def once_options(options: Mapping[str, Any]) -> Idempotency:
    """Check the keyword options for `run_once`, and reject those that need an HTTP request.

    Raises:
        IdempotencyConfigurationError: an option is unknown, or makes no sense without a request.
    """
    for name in options:
        refuse_unknown("option without a request", name, tuple(OnceKeywords.__annotations__))
    return as_options(options)


def patience(options: Idempotency) -> timedelta | float:
    """Return how long a duplicate waits inside `@once`.

    If the lease is longer than `PATIENCE`, the duplicate waits for the full length of the lease, because the key of a
    killed worker stays locked until its lease expires.
    """
    for layer in (options, get_settings().options):
        if "wait" in layer.given():
            return layer.wait
    return max(PATIENCE, resolve(options).lease_seconds or 0)


def operation_name(work: Any, given: str | None) -> str:
    """Return the operation's name: the option, or else the dotted name of the function.

    Functions without a unique name are rejected. Two lambdas in one module share a name, so one of them would get
    the other's stored result.
    """
    if given is not None:
        return given
    name = getattr(work, "__qualname__", "")
    if not name or "<" in name:
        raise IdempotencyConfigurationError(
            f'{work!r} has no name that stays the same in a retry. Pass operation="…", or a function of a module.'
        )
    return f"{work.__module__}.{name}"


@dataclass(frozen=True, slots=True)
class _Function(Work[Any]):
    """`Work` for a function that was passed to `run_once`."""

    function: Callable[..., Any]
    reconciling: Callable[[Operation], Any] | None
    has_steps: bool

    def called(self, operation: Operation) -> Any:
        if self.has_steps:
            return self.function(operation)
        return self.function(operation=operation) if _asks_for_operation(self.function) else self.function()

    def bare(self, name: str, operation: Operation) -> Any:
        """Call the function without protection. If its result can't be stored, return it and log an error."""
        value = self.called(operation)
        try:
            return as_stored(value, encode(value))
        except exceptions.ResultNotStorable as error:
            tell_handed_on(name, error)
            return value

    def run(self, operation: Operation) -> Finished[Any]:
        return _recorded(self.called(operation))

    def reconcile(self, operation: Operation) -> Finished[Any] | None:
        if self.reconciling is None or (result := synchronous(self.reconciling)(operation)) is None:
            return None
        return final_result(result, self.reconciling)


def _asks_for_operation(function: Callable[..., Any]) -> bool:
    """Return whether `operation` is a required parameter. A parameter with a default may mean something else."""
    try:
        parameter = signature(function).parameters.get("operation")
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return parameter is not None and parameter.kind in named and parameter.default is Parameter.empty


def final_result(result: Any, reconcile: Callable[[Operation], Any] | None) -> Finished[Any]:
    """Return the answer from `reconcile` as the work's final result.

    Raises:
        IdempotencyConfigurationError: `reconcile` returned something other than a `Result`.
    """
    if not isinstance(result, Result):
        raise IdempotencyConfigurationError(
            f"reconcile={reconcile!r} returned {result!r}; return Result(value, replayed=False), or None to run again."
        )
    return _recorded(result.value)


def _recorded(value: T) -> Finished[T]:
    text = encode(value)
    snapshot = Snapshot(status_code=DONE, headers=JSON, body=text.encode())
    return Finished(value=as_stored(value, text), verdict=Verdict.KEEP, snapshot=snapshot)


def _identity(scope: str, operation: str, key: Key) -> Identity:
    if not isinstance(scope, str) or not scope:
        raise IdempotencyConfigurationError(f"scope={scope!r}: pass a non-empty str.")
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise InvalidKey(f"key={key!r}: pass a str, an int or a UUID.")
    try:
        check_key(str(key))
    except InvalidKey as error:
        raise InvalidKey(f"key={str(key)[:300]!r}: {error}") from None
    return identify(scope=scope, operation=operation, key=str(key))


def _result(outcome: outcomes.Outcome[T], identity: Identity) -> Result[T]:
    if isinstance(outcome, outcomes.Finished):
        return Result(outcome.value, replayed=False)
    if isinstance(outcome, outcomes.Completed):
        return Result(_value(outcome.snapshot), replayed=True)
    kind, why = NOT_RUN[type(outcome)]
    choice = ""
    if isinstance(outcome, outcomes.InDoubt):
        choice, why = outcome.choice, why if not outcome.undecided else UNDECIDED.format(outcome.undecided)
    error = kind(f"{identity.operation} with key {identity.key!r} {why} {choice}".rstrip())
    if isinstance(error, exceptions.OperationInProgress) and isinstance(outcome, outcomes.Conflicted):
        error.retry_after = outcome.retry_after
    raise error


def _value(snapshot: Snapshot) -> Any:
    text = (snapshot.body or b"").decode(errors="replace")
    if not (snapshot.header("Content-Type") or "").partition(";")[0].rstrip().endswith("json"):
        return text  # a person has completed the key with a response that isn't JSON
    try:
        value = json.loads(text)
        return decode(text) if isinstance(value, dict) and set(value) in STORED_AS else value
    except (ValueError, LookupError, TypeError):
        return text
