"""Observe mode, for a gradual rollout: log what protection would do, and do nothing.

The view runs for every request, in Django's own transaction, and its response goes out unchanged. The key is claimed
and completed in short transactions of their own. An error of these transactions is logged and never reaches the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from django.db import transaction
from django.http.response import HttpResponseBase

from ..events import harmless
from ..protocol.claims import ClaimRequest
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimOutcome, Completed, Conflicted, InDoubt, Mismatched
from ..protocol.snapshots import Snapshot
from ..stores import Store, alias_of, store_for
from .bodies import show_loss
from .problems import Problem
from .view_call import ViewCall

T = TypeVar("T")
LEASE = 300.0
"""Seconds after which the claim of a dead worker counts as abandoned."""
WOULD: dict[type, str] = {
    Completed: "replayed",
    Mismatched: "refused: the key was used for another request",
    Conflicted: "refused: the first request is still running",
    InDoubt: "refused: the outcome of an earlier attempt is unknown",
}
logger = logging.getLogger("django_idempotency")


def observed(call: ViewCall, wish: Callable[[], object], run: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """Run the view, and log what protection would have done instead."""
    wanted = _safely(wish)
    show_loss(call.request)
    if isinstance(wanted, Problem):
        _log(call, f"refused with {wanted.status}: {wanted.title}")
    if not isinstance(wanted, ClaimRequest):
        return run()
    store = store_for(alias_of(call.options))
    outcome = _in_its_own(store, lambda: _claim(store, wanted))
    if not isinstance(outcome, Claimed):
        if type(outcome) in WOULD:
            _log(call, f"{WOULD[type(outcome)]} (key {wanted.identity.reference})")
        return run()
    try:
        response = run()
    except BaseException as error:
        text = describe(error)
        _in_its_own(store, lambda: store.journal.fail(outcome, wanted, text))
        raise
    _in_its_own(store, lambda: _settle(call, store, wanted, outcome, response))
    return response


def _claim(store: Store, wanted: ClaimRequest) -> ClaimOutcome:
    return store.claim(replace(wanted, wait=0, lease=LEASE, repeats_calls=True))


def _settle(call: ViewCall, store: Store, wanted: ClaimRequest, claim: Claimed, response: HttpResponseBase) -> None:
    if response.status_code < 500 and call.options.record(response):
        # A tombstone: the response may not be rendered yet, and observing must not render it.
        snapshot = Snapshot(status_code=response.status_code, headers=(), body=None)
        store.complete(claim, snapshot, ttl=wanted.ttl)
    else:
        store.journal.fail(claim, wanted, f"The view answered {response.status_code}.")


def _in_its_own(store: Store, work: Callable[[], T]) -> T | None:
    """Run `work` in a transaction. Inside another one that is a savepoint: an error here cannot spoil the outer one."""

    def in_transaction() -> T:
        with transaction.atomic(using=store.alias):
            return work()

    return _safely(in_transaction)


def _safely(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except Exception:
        with harmless():
            logger.exception("Observing an idempotency key failed; the request goes on.")
        return None


def _log(call: ViewCall, what: str) -> None:
    with harmless():
        logger.warning("Observed: %s would have been %s.", call.operation_name(), what)
