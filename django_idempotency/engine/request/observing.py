"""Observe mode, for a gradual rollout: log what protection would do, and do nothing.

The view runs for every request, in Django's own transaction, and its response goes out unchanged. The key is claimed
and completed in short transactions of their own. An error of these transactions is logged and never reaches the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from django.db import transaction
from django.http.response import HttpResponseBase

from ..events import harmless
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimRequest, Completed, Refusal, Snapshot
from ..stores import Store, alias_of, store_for
from .fingerprints import UNREADABLE
from .problems import Problem, problem_of
from .view_call import ViewCall

T = TypeVar("T")
LEASE = 300.0
"""Seconds after which the claim of a dead worker counts as abandoned."""
logger = logging.getLogger("django_idempotency")


def observed(
    call: ViewCall, asked: Callable[[ViewCall], object], run: Callable[[ViewCall], HttpResponseBase]
) -> HttpResponseBase:
    """Run the view, and log what protection would have done instead."""
    wanted = _safely(partial(asked, call))
    if not isinstance(wanted, ClaimRequest):
        _log(call, wanted)
        return run(call)
    store = store_for(alias_of(call.options))
    observing = replace(wanted, wait=0, lease=LEASE, policy="retry", repeats_calls=True)
    claim = _in_its_own(store, partial(store.claim, observing))
    if not isinstance(claim, Claimed):
        _log(call, problem_of(claim, call.options) if isinstance(claim, Refusal) else claim, wanted)
        return run(call)
    try:
        response = run(call)
    except BaseException as error:
        _in_its_own(store, partial(store.journal.fail, claim, wanted, describe(error)))
        raise
    _in_its_own(store, partial(_settle, call, store, wanted, claim, response))
    return response


def _settle(call: ViewCall, store: Store, wanted: ClaimRequest, claim: Claimed, response: Any) -> None:
    if not isinstance(response, HttpResponseBase):  # Django Ninja converts the result later, and again
        response = call.ready(response)
    if response.status_code < 500 and call.options.record(response):
        # A tombstone: the response may not be rendered yet, and observing must not render it.
        snapshot = Snapshot(status_code=response.status_code, headers=(), body=None)
        store.complete(claim, snapshot, ttl=wanted.ttl)
    else:
        store.journal.fail(claim, wanted, f"The view answered {response.status_code}.")


def _in_its_own(store: Store, work: Callable[[], T]) -> T | None:
    """Run `work` in a transaction. Inside another one that is a savepoint: an error here cannot spoil the outer one."""
    return _safely(transaction.atomic(using=store.alias)(work))


def _safely(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except Exception as error:
        if isinstance(error, UNREADABLE) or isinstance(error.__context__, UNREADABLE):
            raise  # Django would show an empty body to the view, in place of this error
        with harmless():
            logger.exception("Observing an idempotency key failed; the request goes on.")
        return None


def _log(call: ViewCall, met: object, wanted: ClaimRequest | None = None) -> None:
    if isinstance(met, Completed | Problem):
        what = "replayed" if isinstance(met, Completed) else f"refused with {met.status}: {met.title}"
        key = "" if wanted is None else f" (key {wanted.identity.reference})"
        with harmless():
            logger.warning("Observed: %s would have been %s%s.", call.operation_name(), what, key)
