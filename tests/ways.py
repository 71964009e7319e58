"""The ways of a claim to PostgreSQL: by messages beside Django's cursor, as text or prepared, or by that cursor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, ClaimOutcome, Snapshot
from django_idempotency.engine.stores import store_for
from tests.claims import SNAPSHOT, a_claim

WAYS = ("prepared", "text")
"""By messages, as in production."""
ALL_WAYS = (*WAYS, "cursor")
"""Django's cursor is the way of tests inside an outer transaction, of a server with DEBUG and of a traced process."""


@contextmanager
def going(way: str) -> Iterator[None]:
    """All connections that are made meanwhile go this way from their first claim on."""
    if connection.vendor != "postgresql":
        yield
        return
    from django_idempotency.engine.stores import messages

    state = {"prepared": messages.USED, "text": messages.TEXT, "cursor": messages.BY_CURSOR}[way]

    def first_state(_: Any, raw: Any) -> Any:
        setattr(raw, messages.STATE, state)
        return state

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(messages, "_first_state", first_state)
        _connect_anew()
        yield
        _connect_anew()


def _connect_anew() -> None:
    if not connection.in_atomic_block:
        connection.close()


def warm_up() -> None:
    """The connection has prepared what it prepares. Nothing stays."""
    with transaction.atomic():
        store_for("default").claim(a_claim(key="warms up"))
        transaction.set_rollback(True)


def request_like(
    *work: Any, snapshot: Snapshot = SNAPSHOT, resource: tuple[str, str] = ("order", "7"), **changes: Any
) -> ClaimOutcome:
    """Claim, work and complete in one transaction, as a request in atomic mode does."""
    store = store_for("default")
    with transaction.atomic():
        outcome = store.claim(a_claim(**changes))
        if isinstance(outcome, Claimed):
            for step in work:
                step()
            store.complete(outcome, snapshot, resource=resource)
    return outcome


def sql(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
