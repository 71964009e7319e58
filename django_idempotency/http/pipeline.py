"""What a request meets, top to bottom. The order is part of the contract."""

from __future__ import annotations

from functools import partial
from inspect import iscoroutinefunction
from typing import Any, assert_never

from asgiref.sync import async_to_sync
from django.http.response import HttpResponseBase

from ..conf import Idempotency, settings
from ..events import REPLAYED, tell
from ..exceptions import IdempotencyConfigurationError
from ..execution.atomic import run_atomically
from ..execution.leased import run_leased
from ..execution.steps import Operation
from ..execution.unkeyed import UnkeyedOperation
from ..protocol.digests import identify
from ..protocol.keys import InvalidKey
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
from ..stores import Claim, store_for
from . import problems
from .capture import capture, restore
from .exchange import Exchange
from .headers import read_key
from .observing import observed
from .status import accepted
from .transactions import NO_TRANSACTION, alias_of, as_django_would

RUNNING = "_idempotency_running"
"""Set on the request while its protected view runs."""


def handle(exchange: Exchange) -> HttpResponseBase:
    """Answer one request: pass it through, run its view once, replay, or refuse."""
    options = exchange.options
    if exchange.request.method not in options.methods or not settings().enabled:
        return _pass_through(exchange)
    if options.observe:
        return observed(exchange, lambda: _wanted(exchange), lambda: _pass_through(exchange))
    _refuse_a_second_protection(exchange)
    wanted = _wanted(exchange)
    if wanted is None:
        return _pass_through(exchange)
    if isinstance(wanted, problems.Problem):
        return _refuse(exchange, wanted)
    return _deliver(exchange, wanted, _run_once(exchange, wanted))


def _wanted(exchange: Exchange) -> Claim | problems.Problem | None:
    """What the client asks for: to run something once, something impossible, or no protection."""
    options = exchange.options
    try:
        key = read_key(exchange.asked_with, options)
    except InvalidKey as error:
        return problems.invalid_key(options, str(error))
    if key is None:
        return problems.missing_key(options) if options.required else None
    scope = exchange.scope()
    if scope is None:
        return problems.anonymous_refused()
    return Claim(
        identity=identify(scope=scope, operation=exchange.operation(), key=key),
        fingerprint=exchange.fingerprint(),
        ttl=options.ttl_seconds,
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        repeats_calls=options.repeats_calls,
    )


def _deliver(exchange: Exchange, claim: Claim, outcome: Answer[HttpResponseBase]) -> HttpResponseBase:
    """What the claim has come to, as the client is told."""
    options = exchange.options
    match outcome:
        case Finished(value=response):
            return exchange.deliver(response, replayed=False)
        case Completed(snapshot=snapshot):
            return _replay(exchange, claim, snapshot)
        case Mismatched():
            return _refuse(exchange, problems.already_used(options))
        case Conflicted() if options.in_progress_status == 202:
            return exchange.deliver(accepted(alias_of(options), claim.identity), replayed=False)
        case Conflicted():
            return _refuse(exchange, problems.outstanding(options))
        case InDoubt():
            return _refuse(exchange, problems.outcome_unknown())
        case Unavailable():
            return _refuse(exchange, problems.store_busy())
        case _:
            assert_never(outcome)


def _run_once(exchange: Exchange, claim: Claim) -> Answer[HttpResponseBase]:
    """Under the promise that the options name: atomic or leased."""
    options = exchange.options
    store = store_for(alias_of(options))
    answer = partial(_answer, exchange)
    if options.lease is None:
        return run_atomically(store, claim, partial(_run, exchange), answer)
    reconcile = None if options.reconcile is None else partial(_reconcile, exchange)
    return run_leased(store, claim, partial(_run_leased, exchange), answer, reconcile)


def _refuse_a_second_protection(exchange: Exchange) -> None:
    """Inside its own claim a request would only ever meet itself as a conflict."""
    if getattr(exchange.request, RUNNING, False):
        raise IdempotencyConfigurationError(
            f"{exchange.view!r} is protected twice: the request is already inside a protected view. "
            "Remove one of the decorators or the mixin."
        )


def _pass_through(exchange: Exchange) -> HttpResponseBase:
    if exchange.options.lease is not None:
        # The view is written for leased mode, and must work without a key as well.
        _give(exchange, UnkeyedOperation(alias_of(exchange.options)))
    around = as_django_would(exchange.request)
    if around is NO_TRANSACTION:
        return exchange.pass_through()
    with around:
        return exchange.pass_through()


def _refuse(exchange: Exchange, problem: problems.Problem) -> HttpResponseBase:
    return exchange.deliver(problems.respond(exchange.request, problem), replayed=False)


def _replay(exchange: Exchange, claim: Claim, snapshot: Snapshot) -> HttpResponseBase:
    allowed = exchange.options.may_replay
    if allowed is not None and not exchange.may_replay(allowed):
        return _refuse(exchange, problems.replay_refused())
    tell(REPLAYED, claim.identity, alias_of(exchange.options))
    if snapshot.is_tombstone:
        response = problems.respond(exchange.request, problems.response_not_stored(snapshot))
    else:
        response = restore(snapshot)
    return exchange.deliver(response, replayed=True)


def _run(exchange: Exchange) -> Finished[HttpResponseBase] | Raised:
    """Run the view; in atomic mode, inside the claim's transaction."""
    request: Any = exchange.request
    setattr(request, RUNNING, True)
    try:
        response = exchange.run()
    except Exception as error:  # noqa: BLE001 (classified by the caller, after the rollback)
        return Raised(error)
    finally:
        delattr(request, RUNNING)
    return _judged(response, exchange.options)


def _run_leased(exchange: Exchange, operation: Operation) -> Finished[HttpResponseBase] | Raised:
    _give(exchange, operation)
    return _run(exchange)


def _reconcile(exchange: Exchange, operation: Operation) -> Finished[HttpResponseBase] | None:
    """Ask the project what became of an abandoned operation: its final response, or None to run the view again."""
    _give(exchange, operation)
    reconcile: Any = exchange.options.reconcile
    if iscoroutinefunction(reconcile):
        reconcile = async_to_sync(reconcile)
    response = reconcile(exchange.asked_with, operation)
    if response is None:
        return None
    response = exchange.ready(response)
    return Finished(value=response, verdict=Verdict.KEEP, snapshot=capture(response, exchange.options))


def _give(exchange: Exchange, operation: Operation) -> None:
    request: Any = exchange.request
    request.idempotency = operation


def _answer(exchange: Exchange, error: Exception) -> Finished[HttpResponseBase]:
    """What the framework makes of the view's exception, judged as a returned response would be."""
    try:
        raise error
    except Exception:  # noqa: BLE001 (exception handlers may log what is being handled, with its traceback)
        return _judged(exchange.answer(error), exchange.options)


def _judged(response: HttpResponseBase, options: Idempotency) -> Finished[HttpResponseBase]:
    """The outcome table: what becomes of the business write and of the key."""
    reason = f"The view answered {response.status_code}."
    if response.status_code >= 500:
        return Finished(value=response, verdict=Verdict.ROLL_BACK, reason=reason)
    if not options.record(response):
        return Finished(value=response, verdict=Verdict.RELEASE, reason=reason)
    return Finished(value=response, verdict=Verdict.KEEP, snapshot=capture(response, options))
