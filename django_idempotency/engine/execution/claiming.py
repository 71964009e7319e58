"""This module claims a key. If a deadlock stops the claim, the module tries the claim a second time.

A duplicate can wait until the running request ends. After each pause, the duplicate tries to claim the key again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections

from ...exceptions import NotDecryptable
from ..conf import get_settings
from ..conf.fields import seconds_of
from ..events import harmless, report
from ..protocol.error_text import describe
from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Conflicted, Unavailable
from ..stores import Store, store_for

if TYPE_CHECKING:
    from ..conf import Options
    from ..protocol.digests import Identity

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two claims of a waiting duplicate. The first pauses are short for the sake of fast views, and the
later pauses are long to save queries."""
logger = logging.getLogger("django_idempotency")


def claim_request(options: Options, identity: Identity, fingerprint: bytes | None) -> ClaimRequest:
    """Return a `ClaimRequest` with the values of these options."""
    return ClaimRequest(
        identity=identity,
        fingerprint=fingerprint,
        ttl=options.ttl_seconds,
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        policy=options.policy,
        reconciles=options.reconcile is not None,
        keys_last=0 if options.lease is None else seconds_of(get_settings().derived_keys_last),
    )


def reached(alias: str) -> Store | Unavailable:
    """Return the store of this alias, or `Unavailable` if a new process cannot ask which kind of database it is."""
    try:
        return store_for(alias)
    except (OperationalError, InterfaceError) as error:
        connection = connections[alias]
        if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit):
            raise  # the caller has begun a transaction, whose writes are lost
        return unavailable(alias, error)


def is_alone(store: Store) -> bool:
    """Return True if the caller has no open transaction. The function ignores the transaction of a `TestCase`."""
    connection = store.connection
    if has_begun(connection):
        return False
    return connection.in_atomic_block or connection.connection is None or not store.has_begun(connection)


def has_begun(connection: Any) -> bool:
    """Return True if Django has a transaction open on this connection, which is not that of a `TestCase`."""
    if connection.in_atomic_block:
        return not (connection.atomic_blocks and connection.atomic_blocks[-1]._from_testcase)
    return connection.connection is not None and not connection.autocommit  # get_autocommit() would connect


def claim_or_wait(store: Store, identity: Identity, claim: Callable[[], ClaimOutcome], wait: float = 0) -> ClaimOutcome:
    """Claim the key, and return the outcome of the claim.

    If another request has claimed the key, the function tries again for up to `wait` seconds. After a deadlock or a
    serialization failure, the function claims the key a second time. At this time, the work has not run yet.

    If the caller has an open transaction, the function tries only once to claim the key, and does not wait. A deadlock
    or a lost connection also loses the caller's writes. Only the caller can make these writes again.
    """
    outcome: ClaimOutcome = Conflicted()
    # The waiting time begins before the first claim. Under some isolation levels, MySQL can delay the first claim.
    end = time.monotonic() + wait
    for _ in range(2):
        try:
            outcome = claim()
            break
        except (DatabaseError, InterfaceError) as error:
            code = store.code(error)
            if code in store.busy:
                return Unavailable()
            if not (code in store.repeatable and is_alone(store)):
                down = code in store.down and is_alone(store)
                if not down:
                    report("error", identity, store.alias, reason=describe(error))
                store.explain(error)
                if down:
                    return unavailable(store.alias, error)
                raise
        except NotDecryptable as error:
            report("error", identity, store.alias, reason=describe(error))
            raise
    if wait and isinstance(outcome, Conflicted) and is_alone(store):
        return waited_for(partial(claim_or_wait, store, identity, claim), outcome, end)
    return outcome


def unavailable(alias: str, error: Error) -> Unavailable:
    """Log the error, and return the outcome that a client can repeat: nothing is committed."""
    with harmless():
        logger.error("Database %r cannot take an idempotency key. Nothing was done.", alias, exc_info=error)
        connections[alias].close_if_unusable_or_obsolete()  # a job has no end of a request, at which Django does it
    return Unavailable()


def waited_for(claim: Callable[[], ClaimOutcome], outcome: ClaimOutcome, end: float) -> ClaimOutcome:
    """Repeat the claim until the other request has ended, or until the waiting time is over.

    The argument `end` is the time at which the waiting ends, as a value of `time.monotonic()`. If a claim fails, its
    transaction ends. So while a duplicate waits between two tries, it holds no lock and no snapshot in the database.
    """
    pause = FIRST_PAUSE
    while isinstance(outcome, Conflicted) and (left := end - time.monotonic()) > 0:
        # The length of each pause is random, so that many duplicates do not claim the key at the same moment.
        time.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # nosec B311  # noqa: S311 (no secret)
        pause = min(2 * pause, LONGEST_PAUSE)
        outcome = claim()
    return outcome
