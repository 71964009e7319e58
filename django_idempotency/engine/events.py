"""Reports of what happens to keys: a signal, and a record on the logger `django_idempotency`, both after commit."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.dispatch import Signal

from .. import signals
from ..models import IdempotencyKey
from .protocol.digests import Identity
from .protocol.outcomes import Conflicted, Finished, InDoubt, Mismatched, Outcome, Verdict

logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of report. `name` is also the `event` of the log record; `level` is its level."""

    name: str
    signal: Signal
    level: int


CLAIMED = Event("claimed", signals.key_claimed, logging.DEBUG)
COMPLETED = Event("completed", signals.key_completed, logging.INFO)
REPLAYED = Event("replayed", signals.key_replayed, logging.INFO)
CONFLICTED = Event("conflicted", signals.key_conflicted, logging.INFO)
MISMATCHED = Event("mismatched", signals.key_mismatched, logging.WARNING)
RELEASED = Event("released", signals.key_released, logging.INFO)
TAKEN_OVER = Event("taken_over", signals.key_taken_over, logging.WARNING)
HELD = Event("held", signals.key_held, logging.ERROR)


def report(event: Event, identity: Identity, using: str, *, attempt: int | None = None, reason: str = "") -> None:
    """Log and send the event: at once, or after the commit of a transaction that is open on this alias. Never raises.

    reason: the text behind the first colon is left out. It is the message of an exception, and may quote the client.
    """
    if logger.isEnabledFor(event.level) or event.signal.has_listeners(IdempotencyKey):
        send = partial(_send, event, identity, using, attempt, reason.partition(":")[0])
        if connections[using].in_atomic_block:
            transaction.on_commit(send, using=using, robust=True)
        else:
            send()


def report_outcome(outcome: Outcome[Any], identity: Identity, using: str) -> None:
    """Report how the work ended, or why it did not run.

    Replays are reported by the caller, because `may_replay` can still refuse them. A busy store is not reported: the
    store has found nothing out about the key.
    """
    match outcome:
        case Finished(verdict=Verdict.KEEP):
            report(COMPLETED, identity, using)
        case Finished(reason=reason):
            report(RELEASED, identity, using, reason=reason)
        case Mismatched():
            report(MISMATCHED, identity, using)
        case Conflicted():
            report(CONFLICTED, identity, using)
        case InDoubt():
            report(HELD, identity, using)


def _send(event: Event, identity: Identity, using: str, attempt: int | None, reason: str) -> None:
    with harmless():
        logger.log(
            event.level,
            "Idempotency key %s of %s: %s.",
            identity.reference,
            identity.operation,
            f"{event.name}, {reason}" if reason else event.name,
            extra={
                "event": event.name,
                "operation": identity.operation,
                "key_reference": identity.reference,
                "database": using,
                "attempt": attempt,
                "reason": reason,
            },
        )
    with harmless():
        event.signal.send_robust(IdempotencyKey, identity=identity, using=using, attempt=attempt, reason=reason)


def report_purged(cleanup: Any, using: str) -> None:
    """Log and send the result of a cleanup. Never raises."""
    counts = {"deleted": cleanup.deleted, "stuck": cleanup.stuck, "in_doubt": cleanup.in_doubt}
    with harmless():
        logger.log(
            logging.INFO,
            "Idempotency keys of %s: %d deleted, %d stuck, %d in doubt.",
            using,
            *counts.values(),
            extra={"event": "purged", "database": using, **counts},
        )
    with harmless():
        signals.keys_purged.send_robust(IdempotencyKey, cleanup=cleanup, using=using)


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
