"""Atomic mode with real threads: who wins, who waits, who is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.test import Client

from django_idempotency.engine.protocol.snapshots import Snapshot
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.concurrency.callers import without_autocommit
from tests.concurrency.held_urls import GO, STARTED
from tests.servers import eventually
from tests.shopapp.models import Order
from tests.sql import ask

Post = Callable[..., Any]
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.concurrency.held_urls")]
SNAPSHOT = Snapshot(status_code=200, headers=(), body=b"done")


@pytest.fixture(autouse=True)
def _fresh_events() -> None:
    STARTED.clear()
    GO.clear()


@pytest.mark.parametrize("count", [2, 20, 50])
def test_duplicates_at_once_make_one_order(post: Post, in_threads: Threads, count: int) -> None:
    """One runs; the others are told to come back, or get its answer."""
    barrier = Barrier(count, timeout=30)

    def send(number: int) -> Any:
        barrier.wait()
        return post("/create", {"a": 1}, client=Client())

    answers = in_threads(count, send)
    allowed = {201, 409} if connection.vendor != "sqlite" else {201, 503}
    assert {a.status_code for a in answers} <= allowed
    marks = Counter(a.headers["Idempotency-Replayed"] for a in answers if a.status_code == 201)
    assert marks["false"] == 1
    assert len({a.content for a in answers if a.status_code == 201}) == 1
    assert Order.objects.count() == 1
    assert post("/create", {"a": 1}).headers["Idempotency-Replayed"] == "true"


def test_expired_keys_are_taken_over_once(post: Post, in_threads: Threads) -> None:
    """Twenty late retries make one more order."""
    post("/create")
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=2))
    barrier = Barrier(20, timeout=30)

    def send(number: int) -> Any:
        barrier.wait()
        return post("/create", client=Client()).status_code

    in_threads(20, send)
    # If all of them met each other, the next retry is the one.
    post("/create")
    assert Order.objects.count() == 2
    assert IdempotencyKey.objects.get().attempt == 2


@pytest.mark.only_on("postgresql", "mysql")
class TestWhileItRuns:
    def test_duplicates_are_told_at_once_and_others_are_not_held_up(self, post: Post, in_threads: Threads) -> None:
        """Conflict without waiting; another caller, another key and a read go on."""

        def first(number: int) -> Any:
            return post("/held", client=Client())

        def others(number: int) -> list[int]:
            assert STARTED.wait(30)
            statuses = [post("/held", client=Client()).status_code for _ in range(5)]
            statuses.append(post("/create", client=Client(), headers={"X-Api-Key": "b"}).status_code)
            statuses.append(post("/create", key="another", client=Client()).status_code)
            statuses.append(Client().get("/read").json()["orders"])
            GO.set()
            return statuses

        one, two = in_threads(2, lambda number: (first, others)[number](number))
        assert one.status_code == 201
        assert two == [409, 409, 409, 409, 409, 201, 201, 2]
        assert post("/held").headers["Idempotency-Replayed"] == "true"

    def test_a_duplicate_can_wait_for_the_result(self, post: Post, in_threads: Threads) -> None:
        """wait= gets the winner's answer."""

        def send(number: int) -> Any:
            if number == 0:
                return post("/held", client=Client())
            assert STARTED.wait(30)
            if number == 1:
                GO.set()
            return post("/held_waiting", client=Client())

        answers = in_threads(5, send)
        assert [a.status_code for a in answers] == [201] * 5
        assert len({a.content for a in answers}) == 1
        assert Order.objects.count() == 1

    def test_waiting_has_an_end(self, post: Post, in_threads: Threads) -> None:
        """Then it is the conflict."""

        def send(number: int) -> int:
            if number == 0:
                return int(post("/held", client=Client()).status_code)
            assert STARTED.wait(30)
            status = post("/held_impatient", client=Client()).status_code
            GO.set()
            return int(status)

        assert in_threads(2, send) == [201, 409]


@pytest.mark.only_on("postgresql")
class TestStricterIsolation:
    """The winner commits while a duplicate waits, whose snapshot is older: its claim fails with 40001."""

    def answers(self, post: Post, in_threads: Threads, duplicate: Callable[[], Any]) -> list[Any]:
        def send(number: int) -> Any:
            if number == 0:
                # A test client raises what any request in the process raised meanwhile, so also the other thread's.
                return post("/held", client=Client(raise_request_exception=False))
            assert STARTED.wait(30)
            with connection.cursor() as cursor:
                cursor.execute("SET default_transaction_isolation = 'repeatable read'")
            return duplicate()

        def let_go(number: int) -> Any:
            if number < 2:
                return send(number)
            waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            eventually("the duplicate to wait", lambda: ask(waiting))
            GO.set()
            return None

        return in_threads(3, let_go)

    def test_the_claim_is_repeated_in_a_fresh_transaction(self, post: Post, in_threads: Threads) -> None:
        """And replays."""
        first, second, _ = self.answers(post, in_threads, lambda: post("/held_waiting", client=Client()))
        assert (second.status_code, second.headers["Idempotency-Replayed"]) == (201, "true")
        assert first.content == second.content

    def test_inside_an_outer_transaction_it_propagates(self, post: Post, in_threads: Threads) -> None:
        """Only the code that opened the outer transaction can start again."""

        def nested() -> str:
            try:
                with transaction.atomic():
                    post("/held_waiting", client=Client())
            except DatabaseError as error:
                return type(error.__cause__).__name__
            return "no error"

        first, second, _ = self.answers(post, in_threads, nested)
        assert (first.status_code, second) == (201, "SerializationFailure")

    def test_a_claim_that_keeps_failing_is_a_conflict(self, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
        """After one repetition, or nine with `wait`.

        Without autocommit there is none: only the caller can begin the transaction again.
        """
        tries: list[Any] = []

        def fail(claim: Any) -> Any:
            tries.append(claim)
            with connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION SQLSTATE '40P01'; END $$")

        monkeypatch.setattr(store_for("default"), "claim", fail)
        assert (post("/create").status_code, len(tries)) == (409, 2)
        tries.clear()
        assert (post("/held_waiting").status_code, len(tries)) == (409, 10)
        assert len({claim.deadline for claim in tries}) == 1  # one `wait` for all

        tries.clear()
        with pytest.raises(DatabaseError), without_autocommit():
            post("/create")
        assert len(tries) == 1
