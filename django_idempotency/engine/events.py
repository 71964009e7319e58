"""Reports of what happens to keys: a signal, and a record on the logger `django_idempotency`, both after commit."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from django.db import connections, transaction

from ..models import IdempotencyKey
from ..signals import key_event
from .protocol.digests import Identity, Unidentified
from .protocol.outcomes import (
    Conflicted,
    Finished,
    InDoubt,
    Mismatched,
    Outcome,
    Resource,
    TooOld,
    Unavailable,
    Verdict,
)

logger = logging.getLogger("django_idempotency")


class Event(NamedTuple):
    """One kind of report: the `event` of the signal and of the log record, and the record's level."""

    name: str
    level: int


CLAIMED = Event("claimed", logging.DEBUG)
COMPLETED = Event("completed", logging.INFO)
REPLAYED = Event("replayed", logging.INFO)
CONFLICTED = Event("conflicted", logging.INFO)
# A client can make as many as it likes, so that is not a warning.
MISMATCHED = Event("mismatched", logging.INFO)
MISSING = Event("missing", logging.INFO)
INVALID = Event("invalid", logging.INFO)
TOO_OLD = Event("too_old", logging.INFO)
REPLAY_REFUSED = Event("replay_refused", logging.INFO)
BUSY = Event("busy", logging.WARNING)
RELEASED = Event("released", logging.INFO)
TAKEN_OVER = Event("taken_over", logging.WARNING)
HELD = Event("held", logging.ERROR)
HELD_STILL = Event("held", logging.INFO)
"""Not an error for each retry of the client: one for each attempt, and process."""
REMEMBERED = 1000
"""How many held attempts a process remembers. Then it forgets all of them, and may tell of one again."""
_told: dict[tuple[Any, ...], object] = {}


def report(
    event: Event,
    identity: Identity | Unidentified,
    using: str,
    *,
    attempt: int | None = None,
    reason: str = "",
    resource: Resource | None = None,
) -> None:
    """Log and send the event: at once, or after the commit of a transaction that is open on this alias. Never raises.

    resource: what the operation has referred to, type and id.
    reason: the text behind the first colon is left out. It is the message of an exception, and may quote the client.
    """
    if not (logger.isEnabledFor(event.level) or key_event.has_listeners(IdempotencyKey)):
        return
    about = {"attempt": attempt, "reason": reason.partition(":")[0], "resource": resource}
    send = partial(_send, event, identity, using, about)
    if connections[using].in_atomic_block:
        transaction.on_commit(send, using=using, robust=True)
    else:
        send()


def report_outcome(outcome: Outcome[Any], identity: Identity, using: str) -> None:
    """Report how the work ended, or why it did not run.

    Replays are reported by the caller, because `may_replay` can still refuse them.
    """
    match outcome:
        case Finished(verdict=Verdict.KEEP, resource=resource):
            report(COMPLETED, identity, using, resource=resource)
        case Finished(reason=reason, resource=resource):
            report(RELEASED, identity, using, reason=reason, resource=resource)
        case Mismatched():
            report(MISMATCHED, identity, using)
        case Conflicted():
            report(CONFLICTED, identity, using)
        case Unavailable():
            report(BUSY, identity, using)
        case TooOld():
            report(TOO_OLD, identity, using)
        case InDoubt(attempt=attempt, resource=resource):
            is_news = _is_news((using, identity.key_hash, identity.scope_hash, attempt))
            report(HELD if is_news else HELD_STILL, identity, using, resource=resource)


def _is_news(what: tuple[Any, ...]) -> bool:
    """Whether this process has not told it lately. Threads may ask at once: one of them tells."""
    if len(_told) >= REMEMBERED:
        _told.clear()
    mine = object()
    return _told.setdefault(what, mine) is mine


def _send(event: Event, identity: Identity | Unidentified, using: str, about: dict[str, Any]) -> None:
    type_, id_ = about["resource"] or (None, None)
    parts = (event.name, type_ and f"{type_} {id_}", about["reason"])
    with harmless():
        logger.log(
            event.level,
            "Idempotency key %s of %s: %s.",
            identity.reference or "(none)",
            identity.operation,
            ", ".join(part for part in parts if part),
            extra={
                "event": event.name,
                "operation": identity.operation,
                "key_reference": identity.reference,
                "database": using,
                "attempt": about["attempt"],
                "reason": about["reason"],
                "resource_type": type_,
                "resource_id": id_,
            },
        )
    with harmless():
        key_event.send_robust(IdempotencyKey, event=event.name, using=using, identity=identity, cleanup=None, **about)


def report_purged(cleanup: Any, using: str) -> None:
    """Log and send the result of a cleanup. Never raises."""
    names = ("deleted", "given_up", "unstuck", "stuck", "in_doubt", "half_done")
    counts = {name: getattr(cleanup, name) for name in names}
    with harmless():
        logger.log(
            logging.INFO,
            "Idempotency keys of %s: %d deleted, %d given up, %d unstuck, %d stuck, %d in doubt, %d half done.",
            using,
            *counts.values(),
            extra={"event": "purged", "database": using, **counts},
        )
    with harmless():
        about = {"identity": None, "attempt": None, "reason": "", "resource": None}
        key_event.send_robust(IdempotencyKey, event="purged", using=using, cleanup=cleanup, **about)


def report_given_up(row: IdempotencyKey, using: str, *, in_doubt: list[str], finished: list[str]) -> None:
    """Log that a key which needed attention was deleted, once that is committed. Never raises.

    The row is gone then. So the record has all facts of the row but the texts of the client.

    in_doubt: the names of steps that may have taken effect.
    finished: the names of calls that have taken effect.
    """
    facts = {
        "event": "given_up",
        "operation": row.operation,
        "key_reference": row.reference,
        "database": using,
        "status": row.status,
        "attempt": row.attempt,
        "created_at": row.created_at.isoformat(),
        "in_doubt": in_doubt,
        "finished": finished,
        "resource_type": row.resource_type,
        "resource_id": row.resource_id,
    }

    def log() -> None:
        with harmless():
            logger.error(
                "Idempotency key %s of %s: given_up, claimed at %s and never settled, calls in doubt: %s, "
                "finished calls: %s.",
                row.reference,
                row.operation,
                facts["created_at"],
                ", ".join(in_doubt) or "none",
                ", ".join(finished) or "none",
                extra=facts,
            )

    transaction.on_commit(log, using=using, robust=True)


@contextmanager
def harmless() -> Iterator[None]:
    """Print an error of the log or of a receiver, and go on. `logging` prints its own errors in the same way.

    A filter of the log may raise. `send_robust` itself raises if a receiver without a `__qualname__` raises.
    `on_commit(robust=True)` is not enough. If our partial raises there, Django 5.2 raises too, and drops the project's
    own callbacks; later versions log the partial, with the key in it.
    """
    try:
        yield
    except Exception:  # noqa: BLE001 (a listener must not change the answer of the client)
        traceback.print_exc()
