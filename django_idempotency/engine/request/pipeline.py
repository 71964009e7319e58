"""What a request meets, top to bottom. The order is part of the contract."""

from __future__ import annotations

from functools import partial
from inspect import iscoroutinefunction
from typing import Any, assert_never

from asgiref.sync import async_to_sync
from django.http.response import HttpResponseBase

from ...exceptions import IdempotencyConfigurationError
from ..conf import Idempotency, settings
from ..events import REPLAYED, tell
from ..execution.atomic import run_atomically
from ..execution.leased import run_leased
from ..execution.operation import Operation
from ..execution.unkeyed import UnkeyedOperation
from ..protocol.claims import ClaimRequest
from ..protocol.digests import identify
from ..protocol.key_syntax import InvalidKey
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
from ..stores import store_for
from . import problems
from .atomic_requests import NO_TRANSACTION, alias_of, as_django_would
from .capture import capture, restore
from .key import read_key
from .observing import observed
from .status_page import accepted
from .view_call import ViewCall

RUNNING = "_idempotency_running"
"""Set on the request while its protected view runs."""


def handle(call: ViewCall) -> HttpResponseBase:
    """Answer one request: pass it through, run its view once, replay, or refuse."""
    options = call.options
    if call.request.method not in options.methods or not settings().enabled:
        return _pass_through(call)
    if options.observe:
        return observed(call, lambda: _wanted(call), lambda: _pass_through(call))
    _refuse_a_second_protection(call)
    wanted = _wanted(call)
    if wanted is None:
        return _pass_through(call)
    if isinstance(wanted, problems.Problem):
        return _refuse(call, wanted)
    return _deliver(call, wanted, _run_once(call, wanted))


def _wanted(call: ViewCall) -> ClaimRequest | problems.Problem | None:
    """What the client asks for: to run something once, something impossible, or no protection."""
    options = call.options
    try:
        key = read_key(call.asked_with, options)
    except InvalidKey as error:
        return problems.invalid_key(options, str(error))
    if key is None:
        return problems.missing_key(options) if options.required else None
    scope = call.scope()
    if scope is None:
        return problems.anonymous_refused()
    return ClaimRequest(
        identity=identify(scope=scope, operation=call.operation(), key=key),
        fingerprint=call.fingerprint(),
        ttl=options.ttl_seconds,
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        repeats_calls=options.repeats_calls,
    )


def _deliver(call: ViewCall, claim: ClaimRequest, outcome: Answer[HttpResponseBase]) -> HttpResponseBase:
    """What the claim has come to, as the client is told."""
    options = call.options
    match outcome:
        case Finished(value=response):
            return call.deliver(response, replayed=False)
        case Completed(snapshot=snapshot):
            return _replay(call, claim, snapshot)
        case Mismatched():
            return _refuse(call, problems.already_used(options))
        case Conflicted() if options.in_progress_status == 202:
            return call.deliver(accepted(alias_of(options), claim.identity), replayed=False)
        case Conflicted():
            return _refuse(call, problems.outstanding(options))
        case InDoubt():
            return _refuse(call, problems.outcome_unknown())
        case Unavailable():
            return _refuse(call, problems.store_busy())
        case _:
            assert_never(outcome)


def _run_once(call: ViewCall, claim: ClaimRequest) -> Answer[HttpResponseBase]:
    """Under the promise that the options name: atomic or leased."""
    options = call.options
    store = store_for(alias_of(options))
    answer = partial(_answer, call)
    if options.lease is None:
        return run_atomically(store, claim, partial(_run, call), answer)
    reconcile = None if options.reconcile is None else partial(_reconcile, call)
    return run_leased(store, claim, partial(_run_leased, call), answer, reconcile)


def _refuse_a_second_protection(call: ViewCall) -> None:
    """Inside its own claim a request would only ever meet itself as a conflict."""
    if getattr(call.request, RUNNING, False):
        raise IdempotencyConfigurationError(
            f"{call.view!r} is protected twice: the request is already inside a protected view. "
            "Remove one of the decorators or the mixin."
        )


def _pass_through(call: ViewCall) -> HttpResponseBase:
    if call.options.lease is not None:
        # The view is written for leased mode, and must work without a key as well.
        _give(call, UnkeyedOperation(alias_of(call.options)))
    around = as_django_would(call.request)
    if around is NO_TRANSACTION:
        return call.pass_through()
    with around:
        return call.pass_through()


def _refuse(call: ViewCall, problem: problems.Problem) -> HttpResponseBase:
    return call.deliver(problems.respond(call.request, problem), replayed=False)


def _replay(call: ViewCall, claim: ClaimRequest, snapshot: Snapshot) -> HttpResponseBase:
    allowed = call.options.may_replay
    if allowed is not None and not call.may_replay(allowed):
        return _refuse(call, problems.replay_refused())
    tell(REPLAYED, claim.identity, alias_of(call.options))
    if snapshot.is_tombstone:
        response = problems.respond(call.request, problems.response_not_stored(snapshot))
    else:
        response = restore(snapshot)
    return call.deliver(response, replayed=True)


def _run(call: ViewCall) -> Finished[HttpResponseBase] | Raised:
    """Run the view; in atomic mode, inside the claim's transaction."""
    request: Any = call.request
    setattr(request, RUNNING, True)
    try:
        response = call.run()
    except Exception as error:  # noqa: BLE001 (classified by the caller, after the rollback)
        return Raised(error)
    finally:
        delattr(request, RUNNING)
    return _judged(response, call.options)


def _run_leased(call: ViewCall, operation: Operation) -> Finished[HttpResponseBase] | Raised:
    _give(call, operation)
    return _run(call)


def _reconcile(call: ViewCall, operation: Operation) -> Finished[HttpResponseBase] | None:
    """Ask the project what became of an abandoned operation: its final response, or None to run the view again."""
    _give(call, operation)
    reconcile: Any = call.options.reconcile
    if iscoroutinefunction(reconcile):
        reconcile = async_to_sync(reconcile)
    response = reconcile(call.asked_with, operation)
    if response is None:
        return None
    response = call.ready(response)
    return Finished(value=response, verdict=Verdict.KEEP, snapshot=capture(response, call.options))


def _give(call: ViewCall, operation: Operation) -> None:
    request: Any = call.request
    request.idempotency = operation


def _answer(call: ViewCall, error: Exception) -> Finished[HttpResponseBase]:
    """What the framework makes of the view's exception, judged as a returned response would be."""
    try:
        raise error
    except Exception:  # noqa: BLE001 (exception handlers may log what is being handled, with its traceback)
        return _judged(call.answer(error), call.options)


def _judged(response: HttpResponseBase, options: Idempotency) -> Finished[HttpResponseBase]:
    """The outcome table: what becomes of the business write and of the key."""
    reason = f"The view answered {response.status_code}."
    if response.status_code >= 500:
        return Finished(value=response, verdict=Verdict.ROLL_BACK, reason=reason)
    if not options.record(response):
        return Finished(value=response, verdict=Verdict.RELEASE, reason=reason)
    return Finished(value=response, verdict=Verdict.KEEP, snapshot=capture(response, options))
