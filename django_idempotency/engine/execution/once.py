"""The same promises without HTTP: webhooks, queue consumers, management commands, tasks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeVar, Unpack, assert_never, cast, overload

from asgiref.sync import sync_to_async
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from ...exceptions import IdempotencyConfigurationError, OperationInProgress, OutcomeUnknown, PayloadMismatch, StoreBusy
from ..conf import Idempotency, OnceKeywords, UnleasedKeywords, as_options, resolve, settings
from ..events import REPLAYED, tell
from ..protocol.claims import ClaimRequest
from ..protocol.digests import digest, identify
from ..protocol.key_syntax import InvalidKey, check_key
from ..protocol.outcomes import (
    Answer,
    Completed,
    Conflicted,
    Finished,
    InDoubt,
    Mismatched,
    Raised,
    Unavailable,
    Verdict,
)
from ..protocol.snapshots import Snapshot
from ..stores import alias_for, store_for
from .atomic import run_atomically
from .leased import run_leased
from .operation import Operation, synchronous
from .unkeyed import UnkeyedOperation
from .values import as_kept, decode, encode

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = ("ttl", "wait", "lease", "on_abandoned", "reconcile", "operation", "using")
"""The options that mean something without a request."""
JSON = (("Content-Type", "application/json"),)
DONE = 200
"""The status that a result is kept under, so that the row reads like any other."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What the work returned, now or when it ran. `replayed`: it has not run this time."""

    value: T
    replayed: bool


def run_once(
    work: Callable[..., T], *, scope: str, key: str, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[T]:
    """Run `work` once for this scope, operation and key, and return its result; later, return the same result again.

    Without `lease` `work()` runs in a transaction that also holds the key and the result; inside a transaction of the
    caller's it is a savepoint, and all of it becomes durable when that one commits. With `lease` `work(operation)` gets
    an `Operation` for its steps and must not be called inside a transaction. Results are JSON, or one saved model
    instance. An exception of `work` rolls back, frees the key (leased: fails it, with its steps) and propagates.

    scope: who or what the key belongs to, such as "stripe" or "user:17".
    key: 1 to 255 visible ASCII characters, such as an event's id.
    payload: bytes, or anything JSON; if it is given, the same key with another one raises `PayloadMismatch`.
    options: `operation` (default: the dotted name of `work`), `ttl`, `wait`, `lease`, `on_abandoned`, `using`, and
        `reconcile`, here a `callable(operation)` that returns a `Result`, or None to run again.

    Raises `OperationInProgress`, `OutcomeUnknown`, `PayloadMismatch`, `StoreBusy` (all are `NotRun`), `InvalidKey` (a
    ValueError), `ResultNotStorable`, and `IdempotencyConfigurationError`.
    """
    layer = _layer(options)
    resolved = resolve(layer)
    alias = alias_for(resolved.using)
    if not settings().enabled:
        return _unprotected(work, alias, leased=resolved.lease is not None)
    store = store_for(alias)
    claim = _claim(resolved, work, scope, key, payload)
    reconcile = partial(_reconciled, resolved.reconcile) if resolved.reconcile else None
    if resolved.lease is None:
        answer = run_atomically(store, claim, partial(_run, work), _raise)
    else:
        answer = run_leased(store, claim, partial(_run, work), _raise, reconcile)
    if isinstance(answer, Completed):
        tell(REPLAYED, claim.identity, alias)
    return _result(answer, claim)


@overload
async def arun_once(
    work: Callable[..., Awaitable[T]], *, scope: str, key: str, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[T]: ...


@overload
async def arun_once(
    work: Callable[..., T], *, scope: str, key: str, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[T]: ...


async def arun_once(
    work: Callable[..., Any], *, scope: str, key: str, payload: Any = None, **options: Unpack[OnceKeywords]
) -> Result[Any]:
    """`run_once` for asynchronous callers. `work` may be either kind; it runs in the transaction all the same."""
    options.setdefault("operation", _name(work, options))
    return await sync_to_async(partial(run_once, synchronous(work), scope=scope, key=key, payload=payload, **options))()


@overload
def once(
    *,
    scope: str | Callable[..., str],
    key: Callable[..., str],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[UnleasedKeywords],
) -> Callable[[F], F]: ...


@overload
def once(
    *,
    scope: str | Callable[..., str],
    key: Callable[..., str],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[OnceKeywords],
) -> Callable[[Callable[..., T]], Callable[..., T]]: ...  # callers leave `operation` out


def once(
    *,
    scope: str | Callable[..., str],
    key: Callable[..., str],
    payload: Callable[..., Any] | None = None,
    **options: Unpack[OnceKeywords],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that must do its work once for each key, such as a task or the handler of an event.

    scope, key, payload: callables with the function's own arguments (`scope` may be a plain string); see `run_once`.
    The function returns its result, or the one of its first run. With `lease` it gets the `Operation` as the keyword
    argument `operation`. Works on `def` and `async def`. Raises what `run_once` raises.
    """
    layer = _layer(options)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = _name(function, options)

        def arguments(args: Any, kwargs: Any) -> dict[str, Any]:
            return {
                **options,
                "operation": name,
                "scope": scope(*args, **kwargs) if callable(scope) else scope,
                "key": key(*args, **kwargs),
                "payload": None if payload is None else payload(*args, **kwargs),
            }

        def bound(args: Any, kwargs: Any) -> Callable[..., Any]:
            plain = synchronous(function)
            if resolve(layer).lease is None:
                return partial(plain, *args, **kwargs)
            return lambda operation: plain(*args, operation=operation, **kwargs)

        @wraps(function)
        def protected(*args: Any, **kwargs: Any) -> Any:
            return run_once(bound(args, kwargs), **arguments(args, kwargs)).value

        @wraps(function)
        async def aprotected(*args: Any, **kwargs: Any) -> Any:
            return (await arun_once(bound(args, kwargs), **arguments(args, kwargs))).value

        return aprotected if iscoroutinefunction(function) else protected

    return decorate


def _layer(options: Mapping[str, Any]) -> Idempotency:
    for name in options:
        if name not in OPTIONS:
            raise IdempotencyConfigurationError(
                f"{name!r} is no option without a request. Possible are: {', '.join(OPTIONS)}."
            )
    return as_options(options)


def _claim(options: Idempotency, work: Any, scope: str, key: str, payload: Any) -> ClaimRequest:
    if not isinstance(scope, str) or not scope:
        raise IdempotencyConfigurationError(f"scope={scope!r}: give a non-empty str.")
    if not isinstance(key, str):
        raise InvalidKey(f"key={key!r}: give a str.")
    try:
        check_key(key)
    except InvalidKey as error:
        raise InvalidKey(f"key={key[:300]!r}: {error}") from None
    given = {} if options.operation is None else {"operation": options.operation}
    return ClaimRequest(
        identity=identify(scope=scope, operation=_name(work, given), key=key),
        fingerprint=None if payload is None else _fingerprint(payload),
        ttl=options.ttl_seconds,
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        repeats_calls=options.repeats_calls,
    )


def _name(work: Any, options: Mapping[str, Any]) -> str:
    """What is being done. A function without a name of its own could be taken for another one, and never run."""
    if (operation := options.get("operation")) is not None:
        return cast(str, operation)
    name = getattr(work, "__qualname__", "")
    if not name or "<" in name:
        raise IdempotencyConfigurationError(
            f'{work!r} has no name that stays the same in a retry. Pass operation="…", or a function of a module.'
        )
    return f"{work.__module__}.{name}"


def _fingerprint(payload: Any) -> bytes:
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return digest(b"payload bytes", bytes(payload))
    try:
        text = json.dumps(payload, sort_keys=True, separators=(",", ":"), cls=DjangoJSONEncoder)
    except (TypeError, ValueError, RecursionError) as error:
        raise IdempotencyConfigurationError(f"payload={payload!r:.200} is neither bytes nor JSON: {error}") from error
    return digest(b"payload", text.encode())


def _run(work: Callable[..., T], *operation: Operation) -> Finished[T] | Raised:
    """Run the work and encode its result, in its transaction: what cannot be kept is rolled back."""
    try:
        return _finished(work(*operation))
    except Exception as error:  # noqa: BLE001 (raised again by `_raise`, after the rollback)
        return Raised(error)


def _finished(value: T) -> Finished[T]:
    kept = encode(value)
    snapshot = Snapshot(status_code=DONE, headers=JSON, body=kept.encode())
    return Finished(value=as_kept(value, kept), verdict=Verdict.KEEP, snapshot=snapshot)


def _reconciled(reconcile: Callable[[Operation], Any], operation: Operation) -> Finished[Any] | None:
    result = reconcile(operation)
    if result is None:
        return None
    if not isinstance(result, Result):
        raise IdempotencyConfigurationError(
            f"reconcile={reconcile!r} returned {result!r}; return Result(value, replayed=False), or None to run again."
        )
    return _finished(result.value)


def _raise(error: Exception) -> Finished[Any]:
    raise error


def _result(answer: Answer[T], claim: ClaimRequest) -> Result[T]:
    what = f"{claim.identity.operation} with key {claim.identity.key!r}"
    match answer:
        case Finished(value=value):
            return Result(value, replayed=False)
        case Completed(snapshot=snapshot):
            return Result(_value(snapshot), replayed=True)
        case Mismatched():
            raise PayloadMismatch(f"{what} was used before, for another payload. Use a new key for new work.")
        case Conflicted():
            raise OperationInProgress(f"{what} is being run right now. Try again later.")
        case InDoubt():
            raise OutcomeUnknown(f"{what} was interrupted in an external call, and nobody knows its outcome yet.")
        case Unavailable():
            raise StoreBusy(f"{what} could not be claimed in time. Nothing was done. Try again later.")
        case _:
            assert_never(answer)


def _value(snapshot: Snapshot) -> Any:
    text = (snapshot.body or b"").decode(errors="replace")
    try:
        return decode(text)
    except (ValueError, KeyError, TypeError):
        return text  # what a person has closed the key with


def _unprotected(work: Callable[..., T], alias: str, *, leased: bool) -> Result[T]:
    if leased:
        return Result(work(UnkeyedOperation(alias)), replayed=False)
    with transaction.atomic(using=alias):
        return Result(work(), replayed=False)
