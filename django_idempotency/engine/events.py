"""Report what happens to keys, through the `django_idempotency` logger and the `key_event` signal."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from django.db import connections, transaction

from ..limits import is_limit
from ..models import IdempotencyKey
from ..signals import key_event
from .conf import get_settings
from .protocol import outcomes
from .protocol.digests import Identity, identify

logger = logging.getLogger("django_idempotency")
LEVELS = {
    **dict.fromkeys(("claimed", "unprotected"), logging.DEBUG),
    **dict.fromkeys(("busy", "claim_lost", "slow_call", "taken_over"), logging.WARNING),
    **dict.fromkeys(("held", "error", "unstored"), logging.ERROR),
}
"""All other events are logged as INFO: a client can cause any number of them, so they must not be warnings."""
REFUSED = {
    outcomes.Mismatched: "mismatched",
    outcomes.Conflicted: "conflicted",
    outcomes.Unavailable: "busy",
    outcomes.TooOld: "too_old",
    outcomes.Withheld: "replay_refused",
}
UNDECIDED = "reconcile does not know yet"


@lru_cache(maxsize=1000)
def _levels_of_held(*attempt: Any) -> Iterator[int]:
    """Return the log levels for one attempt's "held" events: ERROR for the first, INFO for the others.

    All events of an attempt share one cached iterator, so each process logs a single ERROR, even if a client retries a
    held key many times.
    """
    return chain([logging.ERROR], repeat(logging.INFO))


def report(
    event: str,
    identity: Identity,
    using: str | None,
    *,
    backend: str | None = None,
    attempt: int | None = None,
    reason: str = "",
    resource: outcomes.Resource | None = None,
    level: int | None = None,
) -> None:
    """Log an event and send it as a signal. The only exception that can propagate is a limit: see `limits.py`.

    If a transaction is open on `using`, this happens after its COMMIT.

    Args:
        event: one of the names in the docstring of `signals.key_event`.
        using: the database alias. None for a key in a `backend`, whose events are sent immediately.
        reason: cut at the first colon, because what follows can come from the client.
        resource: the type and id of the object that the operation is about.
        level: the level of the log record; default: see `LEVELS`.
    """
    level = LEVELS.get(event, logging.INFO) if level is None else level
    if not (logger.isEnabledFor(level) or (key_event.receivers and key_event.has_listeners(IdempotencyKey))):
        return
    reason = reason.partition(":")[0]
    about = {"attempt": attempt, "reason": reason}
    type_, id_ = resource or (None, None)
    what = ", ".join(part for part in (event, type_ and f"{type_} {id_}", reason) if part)
    args = (identity.reference or "(none)", identity.operation, what)
    named = {
        "operation": identity.operation,
        "key_reference": identity.reference,
        "database": using,
        "backend": backend,
    }
    extra = {"event": event, **named, **about, "resource_type": type_, "resource_id": id_}
    place = {"using": using, "backend": backend}
    sent = {"event": event, **place, "identity": identity, **about, "resource": resource, "cleanup": None}

    def tell() -> None:
        _tell(level, "Idempotency key %s of %s: %s.", args, extra, sent)

    if using is not None and connections[using].in_atomic_block:
        # `robust=True` would also swallow a time limit, and log it as an error of the callback.
        transaction.on_commit(tell, using=using)
    else:
        tell()


def report_outcome(
    outcome: outcomes.Outcome[Any], identity: Identity, using: str | None, backend: str | None = None
) -> None:
    """Report how the work ended, or why it did not run."""
    match outcome:
        case outcomes.Finished(verdict=outcomes.Verdict.KEEP, resource=resource):
            event = "unstored" if outcome.unstored else "completed"
            report(event, identity, using, backend=backend, resource=resource)
        case outcomes.Finished(reason=reason, resource=resource):
            event = "held" if outcome.held else "released"
            report(event, identity, using, backend=backend, reason=reason, resource=resource)
        case outcomes.InDoubt(undecided=undecided, resource=resource) if undecided:
            # "Not yet" is an answer and not an error: `reconcile` will be called again.
            report("held", identity, using, reason=UNDECIDED, resource=resource, level=logging.INFO)
        case outcomes.Completed(resource=resource):
            report("replayed", identity, using, backend=backend, resource=resource)
        case outcomes.InDoubt(attempt=attempt, resource=resource):
            levels = _levels_of_held(using, identity.scope_hash, attempt)
            # `report` drops everything after a colon, and a step's name may contain one.
            reason = outcome.choice.replace(":", ";")
            report("held", identity, using, reason=reason, resource=resource, level=next(levels))
        case _:
            report(REFUSED[type(outcome)], identity, using, backend=backend)


def report_unprotected(operation: str) -> None:
    """Report that a request runs without protection, and log it once per process.

    The process that serves the metrics may have different settings, so each worker has to report this itself.
    """
    why = "observe is True" if get_settings().enabled else "ENABLED is False"
    unprotected(operation, why)
    nobody = identify(scope="", operation=operation, key="")
    report("unprotected", nobody, None, reason=why)


@lru_cache(maxsize=1024)
def unprotected(operation: str, why: str) -> None:
    with harmless():
        logger.warning("%s runs without protection, because %s: each retry runs again.", operation, why)


def report_purged(cleanup: Any, using: str) -> None:
    """Log the result of a cleanup, and send it as a signal. Like `report`, this raises nothing but a limit."""
    names = ("deleted", "unstuck", "stuck", "in_doubt", "half_done")
    counts = {name: getattr(cleanup, name) for name in names}
    text = "Idempotency keys of %s: " + ", ".join("%d " + name.replace("_", " ") for name in names) + "."
    nothing = {"backend": None, "identity": None, "attempt": None, "reason": "", "resource": None}
    sent = {"event": "purged", "using": using, **nothing}
    extra = {"event": "purged", "database": using, **counts}
    _tell(logging.INFO, text, (using, *counts.values()), extra, {**sent, "cleanup": cleanup})


def _tell(level: int, text: str, args: tuple[Any, ...], extra: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    try:
        with harmless():
            logger.log(level, text, *args, extra=extra)
    finally:  # if a limit interrupts logging, the receivers must still get the event
        with harmless():
            returned = [answer for _, answer in key_event.send_robust(IdempotencyKey, **sent)]
            if limits := [answer for answer in returned if isinstance(answer, BaseException) and is_limit(answer)]:
                raise limits[0]


class harmless:  # noqa: N801 (used as `with harmless():`)
    """Print any exception that a log filter or a signal receiver raises, and continue.

    Logging prints most of its own errors, but a filter can raise, and `send_robust` itself raises if a receiver without
    `__qualname__` fails. A limit is not one of these errors, and propagates: see `limits.py`.

    This is a class and not a generator: an interrupted generator would keep the block open until it is garbage
    collected.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or is_limit(error):
            return False
        traceback.print_exception(error)  # a receiver must not change the response
        return True
