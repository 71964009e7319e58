"""In what order are the rules applied to a request? The order is part of the contract and must not change.

1. A request with an unprotected method goes straight to the view (`unprotected.py`), in a transaction if
   ATOMIC_REQUESTS is on (`atomic_requests.py`). `PAUSED` stops everything else. In observe mode, the view always runs
   (`observing.py`).
2. The key is read before any database is queried (`sent_key.py`). Its syntax is in `protocol/key_syntax.py`.
3. A missing key is refused if `required`. All refusals are defined in `problems.py`.
4. The scope identifies the caller and its client (`callers/`).
5. The fingerprint is made of the target and the payload (`fingerprints.py`). The framework's adapter says who the
   caller is, and what the payload is.
6. The mode's runner claims the key, runs the work and reports how it ended (`execution/runners.py`). `view_call.py`
   calls the view and evaluates its response.
7. The client gets the view's own response, a replay (`responses.py`) or a refusal. A duplicate leaves the session alone
   (`sessions.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from django.http.response import HttpResponseBase

from ...exceptions import IdempotencyConfigurationError
from ..conf import get_settings
from ..events import report_unprotected
from ..execution.claiming import claim_request_for
from ..execution.runners import Runner
from ..protocol.digests import identify
from ..protocol.key_syntax import InvalidKey
from ..protocol.outcomes import ClaimRequest, Completed, Conflicted, Finished, Refusal, Withheld
from . import problems
from .callers import BY_HEADER, advise, advise_of_renewal, scope_of
from .fingerprints import fingerprint_of
from .observing import observed
from .problems import Problem, Refused
from .responses import accepted, restore
from .sent_key import read_key, refusing_late
from .sessions import keep_stored_session
from .unprotected import identity_of, pass_through, safely
from .view_call import ViewCall

UNUSABLE = {"missing-key": "missing", "invalid-key": "invalid"}
"""The event for each problem with the key itself."""


def handle(call: ViewCall) -> HttpResponseBase:
    """Run the view, protected or not, replay a stored response, or refuse the request."""
    options, conf = call.options, get_settings()
    runner: Runner = options.runner
    if call.method not in options.methods:
        return pass_through(call)
    if conf.paused and runner.pauses(call.operation_name()):
        return _refuse(call, problems.paused())
    if not conf.enabled:
        report_unprotected(call.operation_name())
        return pass_through(call, safely(partial(identity_of, call)))
    if options.observe:
        return observed(call, partial(asked, call))
    if hasattr(call.request, "_idempotency_runs"):
        # An outer decorator or mixin has already claimed the key; a second claim by the same request would conflict.
        raise IdempotencyConfigurationError(
            f"{call.view!r} is protected twice: the request is already inside a protected view. "
            "Remove one of the decorators or the mixin."
        )

    claim_request = asked(call)
    if not isinstance(claim_request, ClaimRequest):
        return pass_through(call) if claim_request is None else _refuse(call, claim_request)

    try:
        outcome = runner.perform(claim_request, call)
    except Exception as error:
        call.adapter.unanswered(call, error)
        raise
    if isinstance(outcome, Finished):
        return call.adapter.deliver(call, outcome.value, replayed=False, own=True)
    keep_stored_session(call.request)
    return _replay(call, outcome) if isinstance(outcome, Completed) else _turned_away(call, claim_request, outcome)


def asked(call: ViewCall) -> ClaimRequest | Problem | None:
    """Return the claim to be made, a `Problem` if the request is refused, or None if the view runs without protection.

    The order is key, scope, fingerprint: an invalid key is refused before any SQL runs.
    """
    options, operation = call.options, call.operation_name()
    try:
        key = read_key(call.asked_with, options)
        if key is None:
            return problems.missing_key(options, call.request) if options.required else None
        scope = scope_of(call.asked_with, options, call.adapter.handed_on)
        if scope.startswith(BY_HEADER):
            advise_of_renewal(call.request, operation, options)
        fingerprint = fingerprint_of(call.request, options, call.asked_with, call.adapter.payload)
    except InvalidKey as error:
        return problems.invalid_key(options, str(error))
    except Refused as refused:
        if refused.advice:
            advise(operation, refused.advice)
        return refused.problem
    claim_request = claim_request_for(options, identify(scope=scope, operation=operation, key=key), fingerprint)
    return refusing_late(claim_request) if options.late_keys == "refuse" else claim_request


def _turned_away(call: ViewCall, claim_request: ClaimRequest, refusal: Refusal | Withheld) -> HttpResponseBase:
    options = call.options
    if isinstance(refusal, Conflicted) and options.in_progress_status == 202:
        return call.adapter.deliver(call, accepted(options.runner.alias(), claim_request.identity), replayed=False)
    problem = problems.problem_of(refusal, options)
    if (problem.resource or problem.refused) and not call.may_replay():
        problem = replace(problem, resource=None, refused=False)
    return _refuse(call, problem)


def _replay(call: ViewCall, completed: Completed) -> HttpResponseBase:
    snapshot = completed.snapshot
    if snapshot.body is None:
        response = problems.respond(call.asked_with, problems.response_not_stored(snapshot, completed.resource))
    else:
        response = restore(snapshot)
    return call.adapter.deliver(call, response, replayed=snapshot.body is not None)


def _refuse(call: ViewCall, problem: Problem) -> HttpResponseBase:
    if (event := UNUSABLE.get(problem.code)) is not None:
        call.options.runner.report_unread(event, call.operation_name())
    return call.adapter.deliver(call, problems.respond(call.asked_with, problem), replayed=False)
