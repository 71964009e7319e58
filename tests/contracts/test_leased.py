"""The contract of leased keys with threads: zombies, takeovers, duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, Conflicted
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyStep
from tests.claims import a_claim
from tests.http import post_empty
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Slow, lapse
from tests.shopapp.models import Order
from tests.ways import ALL_WAYS, going

if TYPE_CHECKING:
    from collections.abc import Iterator


Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.leased_urls")]


@pytest.fixture(params=ALL_WAYS[::2] if connection.vendor == "postgresql" else ALL_WAYS[:1], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with going(request.param):
        yield


@contextmanager
def elsewhere() -> Iterator[Callable[..., Any]]:
    """Run something in a thread with connections of its own; gives a function that starts it."""
    with ThreadPoolExecutor(4) as pool:

        def start(function: Callable[..., Any], *args: Any) -> Any:
            def run() -> Any:
                try:
                    return function(*args)
                finally:
                    connections.close_all()

            return pool.submit(run)

        yield start


@pytest.mark.parametrize("place", ["before the call", "after the call", "between", "at the end"])
def test_a_zombie_commits_nothing_beside_the_winner(key: str, place: str) -> None:
    """Wherever it slept when its lease ran out: one charge, one order, and its client gets the winner's answer."""
    slow = Slow()
    if place == "before the call":
        GATEWAY.before = slow
    elif place == "after the call":
        GATEWAY.after = slow
    else:
        HOOKS[place] = slow
    with elsewhere() as start:
        zombie = start(post_empty, key)
        assert slow.arrived.wait(30), "the first worker never got to its pause"
        lapse()
        winner = post_empty(key)
        slow.go.set()
        answer = zombie.result(30)
    assert (winner.status_code, winner.json()["attempt"]) == (201, 2)
    assert (answer.status_code, answer.content) == (201, winner.content)
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert (len(GATEWAY.charges), Order.objects.count()) == (1, 1)
    assert set(IdempotencyStep.objects.exclude(finished_at=None).values_list("name", flat=True)) == {"charge", "order"}


@pytest.mark.parametrize("state", ["abandoned", "failed"])
def test_a_takeover_has_one_winner(in_threads: Threads, state: str) -> None:
    """Of twenty who come at once."""
    store = store_for("default")
    claim = a_claim(lease=60.0, policy="retry")
    with transaction.atomic():
        claimed = store.claim(claim)
    assert isinstance(claimed, Claimed)
    if state == "abandoned":
        lapse()
    else:
        store.journal.fail(claimed, claim, "it broke")
    barrier = Barrier(20, timeout=30)

    def take_over(number: int) -> Any:
        barrier.wait()
        for _ in range(3):
            try:
                with transaction.atomic():
                    return store.claim(claim)
            except Exception as error:
                if store.code(error) not in store.repeatable and store.code(error) not in store.busy:
                    raise
        return Conflicted()

    outcomes = in_threads(20, take_over)
    assert Counter(type(o) for o in outcomes) == {Claimed: 1, Conflicted: 19}
    winner = next(o for o in outcomes if isinstance(o, Claimed))
    assert (winner.attempt, winner.abandoned) == (2, state == "abandoned")


@pytest.mark.only_on("postgresql", "mysql")
def test_fifty_duplicates_run_once(in_threads: Threads, key: str) -> None:
    """One runs; the others are told, or get its answer."""
    barrier = Barrier(50, timeout=60)

    def send_at_once(number: int) -> Any:
        barrier.wait()
        return post_empty(key)

    answers = in_threads(50, send_at_once)
    assert {a.status_code for a in answers} <= {201, 409}
    assert Counter(a.headers["Idempotency-Replayed"] for a in answers if a.status_code == 201)["false"] == 1
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)
