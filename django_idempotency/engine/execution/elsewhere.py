"""Running work whose key lives in a backend, outside the database.

The claim expires with the lease, according to the backend's clock, unless the result has replaced the claim by then.
Nothing ties the work's effects to the claim or to the result, so the work runs at least once. For `ttl` seconds, a
retry finds the result.

# Note [Who holds the key]
A swap has taken effect if the backend held the expected value, or already held the new value. Each value includes its
attempt's random token, so a swap can safely be repeated if its answer was lost. If a worker's claim is gone and no
other claim has replaced it, nothing is lost: the worker tries once more, this time expecting that no value exists. If a
worker finds another token, it has been overtaken: its client gets the same response as a duplicate.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any, ClassVar, TypeVar, cast

from django.db import connections

from ...exceptions import IdempotencyConfigurationError, LeaseLost, NotDecryptable
from ...limits import is_limit, limit_in
from ..conf import backend_for
from ..events import harmless, report
from ..protocol.error_text import describe
from ..protocol.outcomes import (
    Claimed,
    ClaimOutcome,
    ClaimRequest,
    Completed,
    Conflicted,
    Finished,
    Known,
    Outcome,
    Refusal,
    Resource,
    TooOld,
    Unavailable,
    Verdict,
)
from ..protocol.stored_key import StoredKey, decide
from ..stores.values import claim_value, is_of, name_of, read_value, result_value
from .claiming import has_begun, waited_for
from .leased import warned_about_changes
from .operation import Operation
from .runners import Runner, Work
from .steps import NoSteps

T = TypeVar("T")
STRAY = "A view with backend= changed data: {!r}. A retry would do it again. Leave backend out."
logger = logging.getLogger("django_idempotency")


class Elsewhere(Runner):
    """The backend holds this worker's claim while the work runs."""

    possible: ClassVar = {
        "in_progress_status": (409,),
        "on_abandoned": ("retry",),
        "reconcile": (None,),
        "using": (None,),
        "observe": (False,),
    }
    limits_results = True
    misfit = "cannot be combined with backend=, whose keys are not in the table. Leave %s out."

    @staticmethod
    def suits(backend: str | None, lease: Any) -> bool:
        return backend is not None

    def refuse(self) -> None:
        backend = str(self.options.backend)
        if self.options.lease is None:
            raise IdempotencyConfigurationError(
                f"idempotency option backend={backend!r} needs lease=, after which the claim of a dead worker "
                "expires. Pass lease=30, for example: longer than the view takes."
            )
        backend_for(backend)

    def described(self) -> str:
        return f"at least once, in {self.options.backend!r}"

    def promise(self) -> str:
        return (
            f"A request runs at least once. Its key is kept in {self.options.backend!r}; while it is there, no retry "
            "runs."
        )

    def alias(self) -> None:
        return None

    def journal(self, operation: str) -> BackendJournal:
        return BackendJournal(str(self.options.backend))

    def run(self, store: None, request: ClaimRequest, work: Work[T]) -> Outcome[T]:
        """See the base class. If a transaction is open, this raises `IdempotencyConfigurationError`."""
        key, end = _Key(str(self.options.backend), request), time.monotonic() + request.wait
        journal = BackendJournal(str(self.options.backend), key)
        journal.refuse_transactions()
        operation = finished = None
        try:
            claim = waited_for(key.claim, end)
            if not isinstance(claim, Claimed):
                return claim
            key.report("claimed", attempt=1)
            operation = Operation(request.identity, journal=journal)
            finished = replace(_run(work, operation), resource=operation.resource)
            return key.end(finished)
        except _Overtaken:
            return key.look()
        except BaseException as error:
            if operation is None and not is_limit(error):
                raise  # nothing was claimed
            try:
                # If the work had already ended, the limit interrupted the storing of its result. This worker still has
                # the result, and stores it again.
                if finished is None:
                    key.release()
                else:
                    key.end(finished)
            except _Overtaken:
                if not is_limit(error):
                    return key.look()
            if operation is not None:
                event = "released" if finished is None or finished.verdict is not Verdict.KEEP else "completed"
                key.report(event, reason=describe(error), resource=operation.resource)
            raise


def _run(work: Work[T], operation: Operation) -> Finished[T]:
    try:
        return warned_about_changes(connections, STRAY, partial(work.run, operation))
    except _Overtaken:
        raise  # the framework must not handle this: the client gets the same response as a duplicate
    except Exception as error:
        answered = work.answer(error)
        if answered is None:
            raise
        return answered if answered.verdict is Verdict.KEEP else replace(answered, reason=describe(error))


class _Overtaken(LeaseLost):
    """The backend now stores another worker's value for this key."""


class _Silent(Exception):
    """The backend has not answered, or has returned a value that this release cannot read."""


def _readable(value: bytes) -> StoredKey:
    try:
        return read_value(value)
    except (ValueError, LookupError, TypeError) as error:  # not a value of this package, or one from another release
        raise _Silent from error


class _Key:
    """One key in a backend, and this attempt's value. See Note [Who holds the key]."""

    def __init__(self, backend: str, request: ClaimRequest) -> None:
        self.backend, self.request = backend_for(backend), request
        self.report = partial(report, identity=request.identity, using=None, backend=backend)
        self.name = name_of(request.identity)
        self.token = token_hex(16)
        self.value = b""
        self.lost = False

    def claim(self) -> ClaimOutcome:
        request, of = self.request, self.request.identity
        self.value = claim_value(self.token, request)
        too_old = request.late is not None and request.late(time.time())
        try:
            current = self._swap(None, None if too_old else self.value, request.lease or 0)
            stored = None if current is None or current == self.value else _readable(current)
        except _Silent:
            self._log("does not answer. Nothing has run")
            return Unavailable()
        if stored is not None:
            try:
                return cast(Known, decide(stored, request))
            except NotDecryptable as error:
                self.report("error", reason=describe(error))
                raise
        return TooOld() if too_old else Claimed(id=0, attempt=1, key_hash=of.key_hash, scope_hash=of.scope_hash)

    def look(self) -> Completed | Refusal:
        """Return what a duplicate would get now."""
        try:
            current = self._swap(None, None, 0)
            return Conflicted() if current is None else cast(Known, decide(_readable(current), self.request))
        except (_Silent, NotDecryptable):
            self._log("does not say who has taken over")
            return Conflicted()

    def end(self, finished: Finished[T]) -> Finished[T]:
        """Store the result, or free the key. Raises `_Overtaken`."""
        if finished.final is None:
            self.release()
            return finished
        value = result_value(self.token, self.request, finished.resource, finished.final, self.backend.max_bytes)
        try:
            self.put(value, self.request.ttl)
        except _Silent:
            # If this raised an error, the client would send the request again, and the work would run again.
            self._log("did not store a result. A retry may run the work again")
            return replace(finished, unstored=True)
        return finished

    def release(self) -> None:
        """Free the key. If the backend fails, the key stays claimed until its lease expires. Raises `_Overtaken`."""
        try:
            self.put(None, 0)
        except _Silent:
            self._log("did not release a key, which waits for its lease")

    def refer(self, resource: Resource) -> None:
        self._renew(claim_value(self.token, self.request, resource))

    def renew(self) -> None:
        self._renew(self.value)

    def _renew(self, value: bytes) -> None:
        """Replace the claim. Raises `_Overtaken`; an error of the backend is also raised, so that the view sees it."""
        try:
            self.put(value, self.request.lease or 0)
        except _Silent as silent:
            raise silent.__cause__ or silent from None

    def put(self, new: bytes | None, seconds: float) -> None:
        """Replace this attempt's value. Raises `_Overtaken` and `_Silent`."""
        expected: bytes | None = self.value
        current = self._swap(expected, new, seconds)
        if current is None and new is not None:
            self.report_loss()
        if current not in (expected, new) and (current is None or is_of(current, self.token)):
            expected, current = current, self._swap(current, new, seconds)
        if current not in (expected, new):
            self.report_loss()
            raise _Overtaken("another worker has taken the key over.")
        self.value = new or b""

    def report_loss(self) -> None:
        """Report once that the claim was gone while the work ran."""
        if not self.lost:
            self.lost = True
            self.report("claim_lost")

    def _swap(self, old: bytes | None, new: bytes | None, seconds: float) -> bytes | None:
        handled = sys.exception()
        try:
            return self.backend.swap(self.name, old, new, seconds)
        except Exception as error:
            # An error from the backend counts as no answer. A limit doesn't come from the backend, so it is raised.
            if (limit := limit_in(error, handled)) is not None:
                raise limit from None
            raise _Silent from error

    def _log(self, what: str) -> None:
        with harmless():
            logger.exception("Backend of idempotency key %s %s.", self.request.identity.reference, what)


class BackendJournal(NoSteps):
    """The journal of work with a `backend`. It has no steps, because they would need the step table."""

    def __init__(self, backend: str, key: _Key | None = None) -> None:
        super().__init__(
            "call, fetch and write keep their results in the database, which this operation, with backend=, does not "
            "use. Make the call directly. For an effect that must not be repeated, leave backend out: leased mode has "
            "steps."
        )
        self._backend, self._key = backend, key

    def renew(self) -> None:
        if self._key is not None:
            self._key.renew()

    def refer(self, resource: Resource) -> None:
        if self._key is not None:
            self._key.refer(resource)

    def refuse_transactions(self, what: str = "") -> None:
        for connection in connections.all(initialized_only=True):
            if has_begun(connection):
                raise IdempotencyConfigurationError(
                    f"backend={self._backend!r} was reached inside a transaction of database {connection.alias!r}. A "
                    "key outside the database would outlive a rollback, and a retry would replay a result whose work "
                    "is gone. Remove the atomic(); under ATOMIC_REQUESTS, add @transaction.non_atomic_requests to the "
                    "view."
                )
