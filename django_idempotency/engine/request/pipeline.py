"""What a request meets, from top to bottom. The order is part of the contract."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, assert_never

from django.http.response import HttpResponseBase

from ...exceptions import IdempotencyConfigurationError
from ..conf import get_settings
from ..events import INVALID, MISSING, REPLAY_REFUSED, REPLAYED, harmless, report
from ..execution.atomic_operation import AtomicOperation
from ..execution.execute import execute
from ..execution.operation import UnkeyedOperation
from ..protocol.claims import ClaimRequest
from ..protocol.digests import Unidentified, identify
from ..protocol.key_syntax import InvalidKey
from ..protocol.outcomes import Completed, Conflicted, Finished, InDoubt, Mismatched, Outcome, Unavailable
from ..stores import alias_of, store_for
from . import problems
from .atomic_requests import NO_TRANSACTION, as_django_would
from .callers import ChangingCredential
from .capture import restore
from .key import read_key
from .observing import observed
from .problems import Problem
from .status_page import accepted
from .view_call import RUNNING, ViewCall

logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True, slots=True)
class Unprotected:
    """The request asks for no protection, and the view requires none."""


Wish = ClaimRequest | Problem | Unprotected
"""What a request asks for: to run once, something impossible, or no protection."""
UNUSABLE = {"missing-key": MISSING, "invalid-key": INVALID}
"""The events of problems that end a request before it has an identity, by their code."""


def handle(call: ViewCall) -> HttpResponseBase:
    """Answer one request: pass it through, run its view once, replay, or refuse."""
    options = call.options
    if call.method not in options.methods or not get_settings().enabled:
        return _pass_through(call)
    if options.observe:
        return observed(call, lambda: _wish(call), lambda: _pass_through(call))
    _refuse_a_second_protection(call)

    match _wish(call):
        case Unprotected():
            return _pass_through(call)
        case Problem() as problem:
            if (event := UNUSABLE.get(problem.code)) is not None:
                report(event, Unidentified(operation=call.operation_name()), alias_of(options))
            return _refuse(call, problem)
        case ClaimRequest() as wanted:
            pass
        case wish:
            assert_never(wish)

    alias = alias_of(options)
    outcome = execute(store_for(alias), wanted, call)
    return _deliver(call, wanted, outcome, alias)


def _wish(call: ViewCall) -> Wish:
    """Read the key, then the scope, then the fingerprint. A bad key costs not one SQL statement."""
    options = call.options
    try:
        key = read_key(call.asked_with, options)
    except InvalidKey as error:
        return problems.invalid_key(options, str(error))
    if key is None:
        return problems.missing_key(options, call.request) if options.required else Unprotected()
    try:
        scope = call.scope()
    except ChangingCredential as credential:
        _tell_developer(call.operation_name(), credential.scheme)
        return problems.credential_refused()
    if scope is None:
        return problems.anonymous_refused()
    return ClaimRequest(
        identity=identify(scope=scope, operation=call.operation_name(), key=key),
        fingerprint=call.fingerprint(),
        ttl=options.ttl_seconds,
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        repeats_calls=options.repeats_calls,
        holds=options.on_abandoned == "hold",
    )


@lru_cache(maxsize=1024)  # once for each operation and known scheme: a client must not fill the log
def _tell_developer(operation: str, scheme: str) -> None:
    with harmless():
        logger.warning(
            "%s refused an idempotency key: the Authorization scheme %r changes with each request, so it does not "
            "identify a caller who retries. Set request.user before the view, or pass scope=callable(request).",
            operation,
            scheme,
        )


def _refuse_a_second_protection(call: ViewCall) -> None:
    """Inside its own claim a request would only ever meet itself as a conflict."""
    if getattr(call.request, RUNNING, False):
        raise IdempotencyConfigurationError(
            f"{call.view!r} is protected twice: the request is already inside a protected view. "
            "Remove one of the decorators or the mixin."
        )


def _pass_through(call: ViewCall) -> HttpResponseBase:
    # The view is written for an operation, and must work without a key as well.
    request: Any = call.request
    leased = call.options.lease is not None
    request.idempotency = UnkeyedOperation(alias_of(call.options)) if leased else AtomicOperation(None)
    around = as_django_would(call.request)
    if around is NO_TRANSACTION:
        return call.pass_through()
    with around:
        return call.pass_through()


def _deliver(call: ViewCall, wanted: ClaimRequest, outcome: Outcome[HttpResponseBase], alias: str) -> HttpResponseBase:
    """Tell the client what the claim came to."""
    options = call.options
    match outcome:
        case Finished(value=response):
            return call.deliver(response, replayed=False)
        case Completed():
            return _replay(call, wanted, outcome, alias)
        case Mismatched():
            return _refuse(call, problems.already_used(options))
        case Conflicted() if options.in_progress_status == 202:
            return call.deliver(accepted(alias, wanted.identity), replayed=False)
        case Conflicted():
            return _refuse(call, problems.outstanding(options, outcome.retry_after))
        case InDoubt():
            return _refuse(call, problems.outcome_unknown())
        case Unavailable():
            return _refuse(call, problems.store_busy())
        case _:
            assert_never(outcome)


def _refuse(call: ViewCall, problem: Problem) -> HttpResponseBase:
    return call.deliver(problems.respond(call.request, problem), replayed=False)


def _replay(call: ViewCall, wanted: ClaimRequest, completed: Completed, alias: str) -> HttpResponseBase:
    snapshot = completed.snapshot
    allowed = call.options.may_replay
    if allowed is not None and not call.may_replay(allowed):
        report(REPLAY_REFUSED, wanted.identity, alias)
        return _refuse(call, problems.replay_refused())
    report(REPLAYED, wanted.identity, alias, resource=completed.resource)
    if snapshot.is_tombstone:
        response = problems.respond(call.request, problems.response_not_stored(snapshot))
    else:
        response = restore(snapshot)
    return call.deliver(response, replayed=True)
