"""This module reports what happens to keys. For each event, the module writes to the logger `django_idempotency`, and
sends the signal `key_event`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import Any

from django.db import connections, transaction

from ..models import IdempotencyKey
from ..signals import key_event
from .conf import get_settings
from .protocol import outcomes
from .protocol.digests import Identity

logger = logging.getLogger("django_idempotency")
LEVELS = {
    "claimed": logging.DEBUG,
    **dict.fromkeys(("busy", "claim_lost", "taken_over"), logging.WARNING),
    **dict.fromkeys(("held", "error", "unstored"), logging.ERROR),
}
"""All other events have the level INFO. A client can cause any number of these events, so they must not be warnings."""
REFUSED = {
    outcomes.Mismatched: "mismatched",
    outcomes.Conflicted: "conflicted",
    outcomes.Unavailable: "busy",
    outcomes.TooOld: "too_old",
}


@lru_cache(maxsize=1000)
def _levels_of_held(*attempt: Any) -> Iterator[int]:
    """Return an iterator. For each "held" event of one attempt, the iterator returns the log level of this event.

    The iterator first returns ERROR, and then always INFO.

    Because of the cache, all calls for one attempt return the same iterator. So if a client retries a held key many
    times, each process logs only one ERROR.
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
    """Write the event to the log, and send it as a signal. This function never raises an exception.

    If a transaction is open on this database alias, the log and the signal wait for the commit of this transaction. For
    a key in a `backend`, the alias `using` is None, and nothing waits.

    `event` is one of the texts in the docstring of `signals.key_event`. The package removes the text after the first
    colon from `reason`, because this text can come from the client. `resource` is the type and the id of the object
    that the operation is about. `level` is the level of the log record. If `level` is None, the function reads the
    level from the dict `LEVELS`.
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
    tell = partial(_tell, level, "Idempotency key %s of %s: %s.", args, extra, sent)
    if using is not None and connections[using].in_atomic_block:
        transaction.on_commit(tell, using=using, robust=True)
    else:
        tell()


def report_outcome(
    outcome: outcomes.Outcome[Any], identity: Identity, using: str | None, backend: str | None = None
) -> None:
    """Report how the work ended, or why the work did not run.

    This function does not report replays, because the option `may_replay` can still refuse the replay after this
    function was called. The code that makes a replay also reports the replay.
    """
    match outcome:
        case outcomes.Finished(verdict=outcomes.Verdict.KEEP, resource=resource):
            event = "unstored" if outcome.unstored else "completed"
            report(event, identity, using, backend=backend, resource=resource)
        case outcomes.Finished(reason=reason, resource=resource):
            report("released", identity, using, backend=backend, reason=reason, resource=resource)
        case outcomes.InDoubt(attempt=attempt, resource=resource):
            levels = _levels_of_held(using, identity.key_hash, identity.scope_hash, attempt)
            reason = outcome.choice.replace(":", ";")  # only in the names of steps; `report` would cut the text there
            report("held", identity, using, reason=reason, resource=resource, level=next(levels))
        case _ if type(outcome) in REFUSED:
            report(REFUSED[type(outcome)], identity, using, backend=backend)


def warn_if_unprotected(operation: str) -> None:
    """Write to the log that the requests of this operation run without protection, once in each process."""
    unprotected(operation, "observe is True" if get_settings().enabled else "ENABLED is False")


@lru_cache(maxsize=1024)
def unprotected(operation: str, why: str) -> None:
    with harmless():
        logger.warning("%s runs without protection, because %s: each retry runs again.", operation, why)


def report_purged(cleanup: Any, using: str) -> None:
    """Write the result of a cleanup to the log, and send it as a signal. This function never raises an exception."""
    names = ("deleted", "unstuck", "stuck", "in_doubt", "half_done")
    counts = {name: getattr(cleanup, name) for name in names}
    text = "Idempotency keys of %s: " + ", ".join("%d " + name.replace("_", " ") for name in names) + "."
    nothing = {"backend": None, "identity": None, "attempt": None, "reason": "", "resource": None}
    sent = {"event": "purged", "using": using, **nothing}
    extra = {"event": "purged", "database": using, **counts}
    _tell(logging.INFO, text, (using, *counts.values()), extra, {**sent, "cleanup": cleanup})


def _tell(level: int, text: str, args: tuple[Any, ...], extra: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    with harmless():
        logger.log(level, text, *args, extra=extra)
    with harmless():
        key_event.send_robust(IdempotencyKey, **sent)


@contextmanager
def harmless() -> Iterator[None]:
    """If the logging fails or a signal receiver fails, print the exception, and do not raise the exception again.

    Python's logging prints most of its own errors, and does not raise them. But a filter of a logger can raise an
    exception. If a receiver without `__qualname__` fails, `send_robust` itself raises an exception.

    The argument `robust=True` of `on_commit` cannot replace this function, because the callback is a `partial` object.
    If this callback raised an exception, Django 5.2 would raise a second exception, and would not run the project's
    callbacks. Newer versions of Django would write the text of the callback to the log. This text contains the key, and
    the key is a secret.
    """
    try:
        yield
    # An exception of a receiver must not change the response.
    except Exception:  # noqa: BLE001
        traceback.print_exc()
