"""How a key is claimed: the claim is repeated after a deadlock, and waits while another request holds the key."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

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
    from ..protocol.versions import Fingerprint

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""The shortest and the longest pause between two claims by a waiting duplicate, in seconds. Pauses are short at first,
for the sake of fast views, and then grow longer, to save queries."""
logger = logging.getLogger("django_idempotency")


def claim_request_for(options: Options, identity: Identity, fingerprint: Fingerprint | None) -> ClaimRequest:
    current, earlier = (None, ()) if fingerprint is None else fingerprint
    return ClaimRequest(
        identity=identity,
        fingerprint=current,
        earlier=earlier,
        ttl=options.ttl_seconds,
        wait=options.wait_seconds,
        lease=options.lease_seconds,
        policy=options.policy,
        reconciles=options.reconcile is not None,
        keys_last=0 if options.lease is None else seconds_of(get_settings().derived_keys_last),
    )


def reached(alias: str) -> Store | Unavailable:
    """Return the alias's store.

    Returns `Unavailable` if this process doesn't know the database's kind yet, and can't query it to find out.
    """
    try:
        return store_for(alias)
    except (OperationalError, InterfaceError) as error:
        connection = connections[alias]
        if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit):
            raise  # the caller's transaction is lost, and only the caller can repeat it
        return unavailable(alias, error)


def is_alone(store: Store) -> bool:
    """Whether the caller has no open transaction. A `TestCase`'s transaction does not count."""
    connection = store.connection
    if has_begun(connection):
        return False
    return connection.in_atomic_block or connection.connection is None or not store.has_begun(connection)


def has_begun(connection: Any) -> bool:
    """Whether Django has an open transaction on this connection. A `TestCase`'s transaction does not count."""
    if connection.in_atomic_block:
        return not (connection.atomic_blocks and connection.atomic_blocks[-1]._from_testcase)
    return connection.connection is not None and not connection.autocommit  # get_autocommit() would connect


def claim_or_wait(
    store: Store, request: ClaimRequest, claim: Callable[[], ClaimOutcome], *, alone: bool = True, waits: bool = True
) -> ClaimOutcome:
    """Claim the key, or wait up to `request.wait` seconds for the worker that holds it.

    After a deadlock or a serialization failure, the claim is tried once more, because nothing has run yet. Inside the
    caller's transaction, the claim is tried only once, without waiting: the error undoes the caller's own writes, and
    only the caller can repeat those.

    Args:
        alone: whether the caller had no open transaction before the claim. After an error, the connection may be
            closed, and the caller's transaction lost with it.
        waits: False if this call must not wait for the worker that holds the key.
    """
    if waits and alone and request.wait:
        # The wait includes the first claim, which MySQL may delay under some isolation levels.
        end = time.monotonic() + request.wait
        return waited_for(partial(claim_or_wait, store, request, claim, alone=alone, waits=False), end)
    for _ in range(2):
        try:
            return claim()
        except (DatabaseError, InterfaceError) as error:
            code = store.code(error)
            if code in store.busy:
                return Unavailable()
            if not (code in store.repeatable and alone):
                down = code in store.down and alone
                if not down:
                    report("error", request.identity, store.alias, reason=describe(error))
                store.explain(error)
                if down:
                    return unavailable(store.alias, error)
                raise
        except NotDecryptable as error:
            report("error", request.identity, store.alias, reason=describe(error))
            raise
    return Conflicted()


def unavailable(alias: str, error: Error) -> Unavailable:
    """Log the error, and return `Unavailable`. Nothing is committed, so the client may try again."""
    with harmless():
        logger.error("Database %r cannot take an idempotency key. Nothing was done.", alias, exc_info=error)
        connections[alias].close_if_unusable_or_obsolete()  # outside a request, nothing else does this
    return Unavailable()


def waited_for(claim: Callable[[], ClaimOutcome], end: float) -> ClaimOutcome:
    """Claim the key repeatedly, until the other request ends or `time.monotonic()` reaches `end`.

    A failed claim ends its transaction, so a waiting duplicate holds neither a lock nor a snapshot.
    """
    outcome, pause = claim(), FIRST_PAUSE
    while isinstance(outcome, Conflicted) and (left := end - time.monotonic()) > 0:
        # Without this jitter, many duplicates would all claim the key at the same moment.
        time.sleep(min(left, pause * random.uniform(0.5, 1.5)))  # nosec B311  # noqa: S311 (no secret)
        pause = min(2 * pause, LONGEST_PAUSE)
        if get_settings().pauses():
            break
        outcome = claim()
    return outcome
