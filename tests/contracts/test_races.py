"""The contract of claims at the same moment, by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Barrier
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted, Snapshot
from django_idempotency.engine.stores import Store, store_for
from tests.claims import a_claim, complete, expire
from tests.ways import ALL_WAYS, WAYS, going

Threads = Callable[..., list[Any]]
SNAPSHOT = Snapshot(status_code=201, headers=(), body=b"done")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=ALL_WAYS if connection.vendor == "postgresql" else WAYS[:1], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """On PostgreSQL these races run three times: by prepared statements, by text, and by Django's cursor."""
    with going(request.param):
        yield


@pytest.fixture
def store() -> Store:
    return store_for("default")


@pytest.fixture
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The isolation level of every connection. PostgreSQL's levels have tests of their own."""
    if connection.vendor == "mysql":
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", request.param)
    connection.close()
    yield
    connection.close()


def finish(store: Store, **changes: Any) -> int:
    with transaction.atomic():
        claimed = store.claim(a_claim(**changes))
        assert isinstance(claimed, Claimed)
        complete(store, claimed, SNAPSHOT)
    return claimed.id


def attempt(store: Store, **changes: Any) -> Any:
    """A claim in a transaction of its own; the work is done at once. A database error is returned."""
    try:
        with transaction.atomic():
            outcome = store.claim(a_claim(**changes))
            if isinstance(outcome, Claimed):
                complete(store, outcome, SNAPSHOT)
            return outcome
    except DatabaseError as error:
        return error


def is_harmless(store: Store, outcome: Any) -> bool:
    """May a loser come out like this?"""
    if isinstance(outcome, DatabaseError):
        return store.code(outcome) in store.repeatable or store.code(outcome) in store.busy
    return outcome in (Conflicted(), Completed(snapshot=SNAPSHOT))


@pytest.mark.parametrize("expired", [False, True])
def test_one_of_twenty_wins(store: Store, in_threads: Threads, expired: bool) -> None:
    """A new key or an expired one: one claimant, and the others may ask again."""
    if expired:
        finish(store)
        expire()
    barrier = Barrier(20, timeout=60)

    def race(number: int) -> Any:
        barrier.wait()
        return attempt(store)

    outcomes = in_threads(20, race)
    winners = [outcome for outcome in outcomes if isinstance(outcome, Claimed)]
    assert [winner.attempt for winner in winners] == [2 if expired else 1]
    assert [o for o in outcomes if o not in winners and not is_harmless(store, o)] == []
    assert attempt(store) == Completed(snapshot=SNAPSHOT)
