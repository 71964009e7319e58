"""What happens to a request in observe mode?

# Note [Observing]
A project can set `observe=True` first, and turn the protection on later. Until then the view runs for every request,
and the client gets its response unchanged. With ATOMIC_REQUESTS, the view runs in one transaction, as it would without
the package. The key is claimed in a short transaction, and completed in another; if either fails, the error is logged,
and never reaches the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from django.db import transaction
from django.http.response import HttpResponseBase

from ..events import harmless, report_unprotected
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimRequest, Completed, Refusal, Snapshot, Verdict
from ..stores import Store, store_for
from ..stores.transactions import atomically
from . import problems
from .problems import Problem
from .unprotected import identity_of, pass_through, safely
from .view_call import ViewCall

T = TypeVar("T")
OBSERVED_LEASE = 300.0
"""Seconds after which a dead worker's claim counts as abandoned, for views that are only observed."""
CONTINUED = "continued after its stored steps"
logger = logging.getLogger("django_idempotency")


def observed(call: ViewCall, ask: Callable[[], ClaimRequest | Problem | None]) -> HttpResponseBase:
    """Run the view, and log what would have been replayed or refused if it were protected. See Note [Observing]."""
    report_unprotected(call.operation_name())
    claim_request = safely(ask)
    if not isinstance(claim_request, ClaimRequest):
        _log(call, claim_request)
        return pass_through(call, identity_of(call) if isinstance(claim_request, Problem) else None)
    observing = replace(claim_request, lease=OBSERVED_LEASE, policy="retry")
    store = safely(lambda: store_for(call.options.runner.alias()))
    claim = None if store is None else _in_its_own(store, partial(_claim, store, observing))
    if store is None or not isinstance(claim, Claimed):
        _log(call, problems.problem_of(claim, call.options) if isinstance(claim, Refusal) else claim, claim_request)
        return pass_through(call, claim_request.identity)
    try:
        response = pass_through(call, claim_request.identity)
    except BaseException as error:
        _in_its_own(store, partial(store.journal.fail, claim, claim_request, describe(error)))
        raise
    _in_its_own(store, partial(_settle, call, store, claim_request, claim, response))
    return response


def _claim(store: Store, claim_request: ClaimRequest) -> object:
    """Claim the key, or return `CONTINUED` if the key has steps from a time when the view was protected.

    The view doesn't ask for these steps while it is only observed, and completing the key would hide what they did.
    """
    claim = store.claim(claim_request)
    if isinstance(claim, Claimed) and claim.attempt > 1 and store.journal.has_steps(claim):
        transaction.set_rollback(True, using=store.alias)
        return CONTINUED
    return claim


def _settle(call: ViewCall, store: Store, claim_request: ClaimRequest, claim: Claimed, response: Any) -> None:
    if not isinstance(response, HttpResponseBase):  # Django Ninja builds the response to the client itself
        response = call.adapter.response(call, response)
    if call.options.verdict_on(response) is Verdict.KEEP:
        # Observing must not render a response, so only its status can be stored.
        snapshot = Snapshot(status_code=response.status_code, headers=(), body=None)
        store.complete(claim, snapshot, ttl=claim_request.ttl)
    else:
        store.journal.fail(claim, claim_request, f"The view answered {response.status_code}.")


def _in_its_own(store: Store, work: Callable[[], T]) -> T | None:
    """Run a function in its own transaction. If one is already open, use a savepoint so that errors cannot break it."""
    return safely(partial(atomically, store.alias, work))


def _log(call: ViewCall, met: object, claim_request: ClaimRequest | None = None) -> None:
    if isinstance(met, Problem):
        what = f"refused with {met.status}: {met.title}"
    elif isinstance(met, Completed):
        what = "replayed"
    elif met is CONTINUED:
        what = CONTINUED
    else:
        return
    key = "" if claim_request is None else f" (key {claim_request.identity.reference})"
    with harmless():
        logger.warning("Observed: %s would have been %s%s.", call.operation_name(), what, key)
