"""Real threads, real connections: who wins, who waits, who is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from threading import Barrier, Event
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.protocol.snapshots import Snapshot
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.integration.test_stores import a_claim
from tests.servers import eventually
from tests.shopapp.models import Order

Post = Callable[..., Any]
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.concurrency.test_views")]
SNAPSHOT = Snapshot(status_code=200, headers=(), body=b"done")
STARTED, GO = Event(), Event()


@idempotent
def create(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": Order.objects.create().pk}, status=201)


# One operation under three paths, which differ in their patience only.
@idempotent(operation="held", fingerprint=None)
def held(request: HttpRequest) -> HttpResponse:
    """Stop after the write until the test says go on."""
    pk = Order.objects.create().pk
    STARTED.set()
    assert GO.wait(30)
    return JsonResponse({"id": pk}, status=201)


held_waiting = idempotent(wait=30, operation="held", fingerprint=None)(held.__wrapped__)
held_impatient = idempotent(wait=0.05, operation="held", fingerprint=None)(held.__wrapped__)


def read(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"orders": Order.objects.count()})


urlpatterns = [path(v.__name__, v) for v in (create, read)] + [
    path("held", held),
    path("held_waiting", held_waiting),
    path("held_impatient", held_impatient),
]


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
            eventually("the duplicate to wait", lambda: _ask(waiting))
            GO.set()
            return None

        return in_threads(3, let_go)

    def test_the_claim_is_repeated_in_a_fresh_transaction(self, post: Post, in_threads: Threads) -> None:
        """And replays."""
        first, second, _ = self.answers(post, in_threads, lambda: post("/held_waiting", client=Client()))
        assert (second.status_code, second.headers["Idempotency-Replayed"]) == (201, "true")
        assert first.content == second.content

    def test_inside_an_outer_transaction_it_propagates(self, post: Post, in_threads: Threads) -> None:
        """Only whoever opened that one can start afresh."""

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
        """After one repetition."""
        tries = []

        def fail(claim: Any) -> Any:
            tries.append(claim)
            with connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION SQLSTATE '40P01'; END $$")

        monkeypatch.setattr(store_for("default"), "claim", fail)
        assert (post("/create").status_code, len(tries)) == (409, 2)

    def test_another_error_of_the_wait_propagates(self, in_threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only a wait that ends by time is a conflict."""
        store = store_for("default")
        monkeypatch.setattr(type(store), "_wait_insert_sql", "SELECT pg_terminate_backend(pg_backend_pid())")
        monkeypatch.setattr(store, "_run_insert", lambda statement, claim: _ask(statement))
        for name in ("_claim_in_few_round_trips", "_insert", "_read"):
            monkeypatch.setattr(store, name, lambda claim: None)

        def claim(number: int) -> None:
            with pytest.raises(DatabaseError), transaction.atomic():
                store.claim(a_claim(wait=1))

        in_threads(1, claim)


def _ask(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


@pytest.mark.only_on("sqlite")
def test_a_locked_database_is_503(post: Post, in_threads: Threads) -> None:
    """It may be about another key: nobody can tell, and nothing was done."""

    def send(number: int) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 50")
        response = post("/create", client=Client())
        GO.set()
        return response

    def hold(number: int) -> None:
        with transaction.atomic():
            Order.objects.create()
            STARTED.set()
            assert GO.wait(30)

    def run(number: int) -> Any:
        if number == 0:
            return hold(number)
        assert STARTED.wait(30)
        return send(number)

    _, response = in_threads(2, run)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.json()["title"] == "The idempotency store is busy"
    assert Order.objects.count() == 1


class TestStores:
    def race(self, in_threads: Threads, count: int, **changes: Any) -> list[Any]:
        """Claim at once; nobody ends the transaction before all have their outcome."""
        barrier = Barrier(count, timeout=60)
        store = store_for("default")

        def claim(number: int) -> Any:
            barrier.wait()
            with transaction.atomic():
                outcome = store.claim(a_claim(**changes))
                barrier.wait()
                if isinstance(outcome, Claimed):
                    store.complete(outcome, SNAPSHOT)
            return outcome

        return in_threads(count, claim)

    @pytest.mark.only_on("postgresql", "mysql")
    def test_one_of_many_wins_and_nobody_waits_for_its_end(self, in_threads: Threads) -> None:
        """All losers know while the winner is still at work."""
        outcomes = self.race(in_threads, 20)
        assert Counter(type(o) for o in outcomes) == {Claimed: 1, Conflicted: 19}
        assert store_for("default").claim(a_claim()) == Completed(snapshot=SNAPSHOT)

    @pytest.mark.only_on("postgresql")
    def test_one_of_many_takes_an_expired_key_over(self, in_threads: Threads) -> None:
        """Exactly one, at attempt 2."""
        store = store_for("default")
        with transaction.atomic():
            claimed = store.claim(a_claim())
            assert isinstance(claimed, Claimed)
            store.complete(claimed, SNAPSHOT)
        IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=2))
        outcomes = self.race(in_threads, 20)
        assert [o for o in outcomes if isinstance(o, Claimed)] == [Claimed(id=claimed.id, attempt=2)]
        assert Counter(type(o) for o in outcomes)[Conflicted] == 19

    @pytest.mark.only_on("postgresql")
    @pytest.mark.parametrize("lock_timeout", ["0", "7s"])
    def test_waiting_leaves_the_projects_lock_timeout_alone(self, in_threads: Threads, lock_timeout: str) -> None:
        """The view never sees ours."""
        store = store_for("default")
        ready = Event()

        def run(number: int) -> Any:
            with transaction.atomic():
                if number == 0:
                    store.claim(a_claim())
                    ready.set()
                    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                    eventually("the other to wait", lambda: _ask(waiting))
                    transaction.set_rollback(True)
                    return None
                assert ready.wait(30)
                with connection.cursor() as cursor:
                    cursor.execute("SELECT set_config('lock_timeout', %s, true)", [lock_timeout])
                outcome = store.claim(a_claim(wait=30))
                with connection.cursor() as cursor:
                    cursor.execute("SHOW lock_timeout")
                    return outcome, cursor.fetchone()[0]

        _, (outcome, after) = in_threads(2, run)
        assert isinstance(outcome, Claimed)
        assert after == lock_timeout

    @pytest.mark.only_on("postgresql")
    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_stricter_isolation_asks_for_a_fresh_transaction(self, in_threads: Threads, level: str) -> None:
        """The snapshot is older than the winner's commit: the claim fails in a way that may be repeated."""
        store = store_for("default")
        snapshot_taken, committed = Event(), Event()

        def winner() -> Any:
            assert snapshot_taken.wait(30)
            with transaction.atomic():
                claimed = store.claim(a_claim())
                assert isinstance(claimed, Claimed)
                store.complete(claimed, SNAPSHOT)
            committed.set()

        def loser() -> bool:
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
                    cursor.execute("SELECT 1")
                    snapshot_taken.set()
                    assert committed.wait(30)
                    store.claim(a_claim())
            except DatabaseError as error:
                return store.may_repeat(error)
            raise AssertionError("the claim did not notice")

        assert in_threads(2, lambda number: (winner, loser)[number]()) == [None, True]
        assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
