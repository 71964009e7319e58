"""What happens to a request in observe mode?

# Note [Observing]
A project can set `observe=True` first, and turn the protection on later. Until then the view runs for every request,
and the client gets its response unchanged. With ATOMIC_REQUESTS, the view runs in one transaction, as it would without
the package. The key is claimed in a short transaction, and completed in another. An error that does not come from the
view is logged, and never reaches the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from django.http.response import HttpResponseBase

from ..events import harmless, report_unprotected
from ..execution.leased import Leased
from ..execution.operation import Operation
from ..execution.runners import Work
from ..protocol.digests import Identity
from ..protocol.error_text import describe
from ..protocol.outcomes import Claimed, ClaimRequest, Completed, Finished, InDoubt, Outcome, Snapshot, Verdict
from ..stores import Store
from ..stores.transactions import atomically
from .problems import Problem, problem_of
from .unprotected import identity_of, pass_through, safely, without_protection
from .view_call import ViewCall

T = TypeVar("T")
OBSERVED_LEASE = 300.0
"""Seconds after which a dead worker's claim counts as abandoned, for views that are only observed."""
logger = logging.getLogger("django_idempotency")


def observed(call: ViewCall, ask: Callable[[], ClaimRequest | Problem | None]) -> HttpResponseBase:
    """Run the view, and log what would have been replayed or refused if it were protected. See Note [Observing]."""
    report_unprotected(call.operation_name())
    claim_request, view, identity = safely(ask), Observed(call), None
    if isinstance(claim_request, ClaimRequest):
        safely(partial(Observing(call.options).perform, claim_request, view))
        identity = claim_request.identity
    elif isinstance(claim_request, Problem):
        _log(call.operation_name(), claim_request)
        identity = safely(partial(identity_of, call))
    return view.result() if view.has_run else pass_through(call, identity)


class Observed(Work[Any]):
    """A view that runs without protection. It stores the view's own exception, to tell it from the package's errors."""

    has_run = False
    error: BaseException | None = None

    def __init__(self, call: ViewCall) -> None:
        self.call = call

    def run(self, operation: Operation) -> Finished[Any]:
        self.has_run = True
        try:
            self.returned: Any = without_protection(self.call, operation)
        except BaseException as error:  # noqa: BLE001 (`result` raises it)
            self.error = error
            return Finished(value=None, verdict=Verdict.ROLL_BACK, reason=describe(error))
        return self.call.in_own_transaction(self._judged)

    def _judged(self) -> Finished[Any]:
        response = self.returned
        if not isinstance(response, HttpResponseBase):  # Django Ninja builds the response to the client itself
            response = self.call.adapter.response(self.call, response)
        # Observing must not render a response, so only its status can be stored.
        snapshot = Snapshot(status_code=response.status_code, headers=(), body=None)
        reason = f"The view answered {response.status_code}."
        return Finished(value=None, verdict=self.call.options.verdict_on(response), snapshot=snapshot, reason=reason)

    def result(self) -> HttpResponseBase:
        if self.error is not None:
            raise self.error
        return self.returned  # type: ignore[no-any-return]


class Observing(Leased):
    """Claims a key and completes it, each in a transaction of its own, and logs what protection would have done.

    This mode is not registered, because an observed endpoint already has the mode in which it will be protected.
    """

    def alias(self) -> str | None:
        alias: str | None = self.options.runner.alias()
        return alias

    def run(self, store: Store, request: ClaimRequest, work: Work[T]) -> Outcome[T]:
        observing = replace(request, lease=OBSERVED_LEASE, policy="retry", observes=True)
        claim = atomically(store.alias, partial(store.claim, observing))
        if not isinstance(claim, Claimed):
            return claim
        finished = work.run(self.options.runner.without_key(request.identity.operation, request.identity))
        if finished.final is None:
            atomically(store.alias, partial(store.journal.fail, claim, request, finished.reason))
        else:
            atomically(store.alias, partial(store.complete_for, claim, finished.final, request.ttl))
        return finished

    def report_end(
        self, outcome: Outcome[Any], identity: Identity, using: str | None, backend: str | None = None
    ) -> None:
        if isinstance(outcome, Finished):
            return
        what: Problem | str = "replayed"
        if isinstance(outcome, InDoubt) and self.options.runner.has_steps:
            what = "continued after its stored steps"
        elif not isinstance(outcome, Completed):
            what = problem_of(outcome, self.options)
        _log(identity.operation, what, f" (key {identity.reference})")


def _log(operation: str, what: Problem | str, key: str = "") -> None:
    if isinstance(what, Problem):
        what = f"refused with {what.status}: {what.title}"
    with harmless():
        logger.warning("Observed: %s would have been %s%s.", operation, what, key)
