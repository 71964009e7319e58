"""What a request meets, from top to bottom. The order is part of the contract."""

from __future__ import annotations

import logging
from functools import lru_cache
from time import time
from typing import Any

from django.http.response import HttpResponseBase

from ...exceptions import IdempotencyConfigurationError
from ..conf import get_settings
from ..events import harmless, report, report_outcome
from ..execution.atomic import run_atomically
from ..execution.leased import run_leased
from ..execution.operation import unkeyed
from ..protocol.claims import ClaimRequest
from ..protocol.digests import Unidentified, identify
from ..protocol.key_syntax import MAX_AHEAD, InvalidKey, is_late
from ..protocol.outcomes import Completed, Conflicted, Finished
from ..stores import alias_of, store_for
from . import problems
from .atomic_requests import as_django_would
from .callers import ChangingCredential
from .capture import restore
from .fingerprints import BodyTooLarge, LengthRequired
from .key import read_key
from .observing import observed
from .problems import Problem
from .status_page import accepted
from .view_call import ViewCall

logger = logging.getLogger("django_idempotency")
UNUSABLE = {"missing-key": "missing", "invalid-key": "invalid"}
"""The events of problems that end a request before it has an identity, by their code."""


def handle(call: ViewCall) -> HttpResponseBase:
    """Answer one request: pass it through, run its view once, replay, or refuse."""
    options = call.options
    if call.method not in options.methods or not get_settings().enabled:
        return pass_through(call)
    if options.observe:
        return observed(call, asked, pass_through)
    if hasattr(call.request, "_idempotency_runs"):
        raise _protected_twice(call)

    wanted = asked(call)
    if wanted is None:
        return pass_through(call)
    if isinstance(wanted, Problem):
        return _refuse(call, wanted)

    alias = alias_of(options)
    run = run_atomically if wanted.lease is None else run_leased
    outcome = run(store_for(alias), wanted, call)
    if isinstance(outcome, Completed):
        return _replay(call, wanted, outcome, alias)
    report_outcome(outcome, wanted.identity, alias)
    if isinstance(outcome, Finished):
        return call.deliver(outcome.value, replayed=False)
    if isinstance(outcome, Conflicted) and options.in_progress_status == 202:
        return call.deliver(accepted(alias, wanted.identity), replayed=False)
    return _refuse(call, problems.problem_of(outcome, options))


def asked(call: ViewCall) -> ClaimRequest | Problem | None:
    """What the request asks for: to run once, something impossible, or no protection (None).

    Reads the key, then the scope, then the fingerprint. A bad key costs not one SQL statement.
    """
    options, operation = call.options, call.operation_name()
    try:
        key = read_key(call.asked_with, options)
        if key is None:
            return problems.missing_key(options, call.request) if options.required else None
        scope = call.scope()
        if scope is None:
            return problems.anonymous_refused()
        fingerprint = call.fingerprint()
    except InvalidKey as error:
        return problems.invalid_key(options, str(error))
    except ChangingCredential:
        _tell_developer(operation)
        return problems.credential_refused()
    except LengthRequired:
        return problems.length_required()
    except BodyTooLarge:
        return problems.body_too_large()
    refuses_late_keys = options.late_keys == "refuse"
    return ClaimRequest(
        identity=identify(scope=scope, operation=operation, key=key),
        fingerprint=fingerprint,
        # Of a client whose clock is ahead, the key must not be forgotten before it counts as late.
        ttl=options.ttl_seconds + (MAX_AHEAD if refuses_late_keys else 0),
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        repeats_calls=options.repeats_calls,
        policy=options.policy,
        known_only=refuses_late_keys and is_late(key, options.ttl_seconds, time()),
    )


def pass_through(call: ViewCall) -> HttpResponseBase:
    """Call the view as if it were not protected. Its code asks for an operation, and gets one without a key."""
    request: Any = call.request
    request.idempotency = unkeyed(alias_of(call.options), leased=call.options.lease is not None)
    with as_django_would(request):
        return call.view(*call.args, **call.kwargs)  # type: ignore[no-any-return]


def _replay(call: ViewCall, wanted: ClaimRequest, completed: Completed, alias: str) -> HttpResponseBase:
    snapshot = completed.snapshot
    allowed = call.options.may_replay
    if allowed is not None and not call.may_replay(allowed):
        report("replay_refused", wanted.identity, alias)
        return _refuse(call, problems.replay_refused())
    report("replayed", wanted.identity, alias, resource=completed.resource)
    if snapshot.body is None:
        response = problems.respond(call.request, problems.response_not_stored(snapshot))
    else:
        response = restore(snapshot)
    return call.deliver(response, replayed=True)


def _refuse(call: ViewCall, problem: Problem) -> HttpResponseBase:
    if (event := UNUSABLE.get(problem.code)) is not None:
        report(event, Unidentified(operation=call.operation_name()), alias_of(call.options))
    return call.deliver(problems.respond(call.request, problem), replayed=False)


def _protected_twice(call: ViewCall) -> IdempotencyConfigurationError:
    """Inside its own claim a request would only ever meet itself as a conflict."""
    return IdempotencyConfigurationError(
        f"{call.view!r} is protected twice: the request is already inside a protected view. "
        "Remove one of the decorators or the mixin."
    )


@lru_cache(maxsize=1024)  # once for each operation: a client must not fill the log
def _tell_developer(operation: str) -> None:
    with harmless():
        logger.warning(
            "%s refused an idempotency key: the value of its Authorization scheme may change with each request, so it "
            "does not identify a caller who retries. Set request.user before the view or pass scope=callable(request).",
            operation,
        )
