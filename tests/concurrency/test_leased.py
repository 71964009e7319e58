"""Leased mode with real threads: zombies, takeovers, waiting duplicates, clocks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction
from django.db.models import F
from django.test import Client
from django.utils import timezone

from django_idempotency.engine.protocol.outcomes import Claimed, Conflicted, InDoubt
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.integration.test_stores import a_claim
from tests.servers import eventually
from tests.shopapp.models import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.integration.leased_urls")]
Threads = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


def send(key: str, path: str = "/pay") -> Any:
    client = Client(raise_request_exception=False)
    return client.post(path, {}, content_type="application/json", headers={"Idempotency-Key": key})


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


def lapse() -> None:
    IdempotencyKey.objects.update(locked_until=F("locked_until") - timedelta(hours=1))


class Slow:
    """Stops the first one that comes by until it is let go."""

    def __init__(self) -> None:
        self.arrived, self.go, self.used = Event(), Event(), False

    def __call__(self, *args: Any) -> None:
        if not self.used:
            self.used = True
            self.arrived.set()
            assert self.go.wait(30)


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
        zombie = start(send, key)
        assert slow.arrived.wait(30)
        lapse()
        winner = send(key)
        slow.go.set()
        answer = zombie.result(30)
    assert (winner.status_code, winner.json()["attempt"]) == (201, 2)
    assert (answer.status_code, answer.content) == (201, winner.content)
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert (len(GATEWAY.charges), Order.objects.count()) == (1, 1)
    assert set(IdempotencyStep.objects.exclude(finished_at=None).values_list("name", flat=True)) == {"charge", "order"}


@pytest.mark.only_on("postgresql", "mysql")
def test_a_late_worker_in_the_middle_of_a_write_cannot_be_overtaken(key: str) -> None:
    """It has locked the row: duplicates are told so at once, and its write and completion stand."""
    slow = Slow()

    def write(operation: Any) -> None:
        lapse()
        operation.write("slow", slow)

    HOOKS["between"] = write
    with elsewhere() as start:
        late = start(send, key)
        assert slow.arrived.wait(30)
        assert send(key).status_code == 409
        slow.go.set()
        assert late.result(30).json()["attempt"] == 1
    assert send(key).headers["Idempotency-Replayed"] == "true"
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)


def test_held_a_late_worker_still_brings_its_result(key: str) -> None:
    """Its lease is over and a call in doubt: nobody else runs, so it may finish."""
    slow = Slow()
    GATEWAY.before = slow
    with elsewhere() as start:
        late = start(send, key, "/pay/hold")
        assert slow.arrived.wait(30)
        lapse()
        assert send(key, "/pay/hold").json()["title"] == "The outcome for this Idempotency-Key is unknown"
        slow.go.set()
        assert late.result(30).status_code == 201
    assert send(key, "/pay/hold").headers["Idempotency-Replayed"] == "true"
    assert (GATEWAY.calls, len(GATEWAY.charges)) == (1, 1)


@pytest.mark.parametrize("state", ["abandoned", "failed"])
def test_a_takeover_has_one_winner(in_threads: Threads, state: str) -> None:
    """Of twenty who come at once."""
    store = store_for("default")
    claim = a_claim(lease=60.0, repeats_calls=True)
    with transaction.atomic():
        claimed = store.claim(claim)
    assert isinstance(claimed, Claimed)
    if state == "abandoned":
        lapse()
    else:
        store.fail(claimed, claim, "it broke")
    barrier = Barrier(20, timeout=30)

    def take_over(number: int) -> Any:
        barrier.wait()
        for _ in range(3):
            try:
                with transaction.atomic():
                    return store.claim(claim)
            except Exception as error:
                if not store.may_repeat(error) and not store.is_busy(error):
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
        return send(key)

    answers = in_threads(50, send_at_once)
    assert {a.status_code for a in answers} <= {201, 409}
    assert Counter(a.headers["Idempotency-Replayed"] for a in answers if a.status_code == 201)["false"] == 1
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each pause of a waiting duplicate: was a transaction open?"""
    seen: list[bool] = []
    sleep = time.sleep

    def observed(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            seen.append(connections["default"].in_atomic_block)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", observed)
    return seen


def test_a_waiting_duplicate_gets_the_result(key: str, waits: list[bool]) -> None:
    """As soon as there is one, and it holds no transaction meanwhile."""
    slow = Slow()
    GATEWAY.before = slow
    with elsewhere() as start:
        first = start(send, key, "/pay/wait")
        assert slow.arrived.wait(30)
        second = start(send, key, "/pay/wait")
        eventually("the duplicate to wait", lambda: waits)
        slow.go.set()
        answers = [first.result(30), second.result(30)]
    assert [a.status_code for a in answers] == [201, 201]
    assert sorted(a.headers["Idempotency-Replayed"] for a in answers) == ["false", "true"]
    assert not any(waits)


def test_a_waiting_duplicate_takes_a_failed_key_over(key: str, waits: list[bool]) -> None:
    """The first came to nothing, so the one that waits runs."""
    slow = Slow()

    def fail_once(*args: Any) -> None:
        first = not slow.used
        slow()
        if first:
            raise ValueError("the gateway is down")

    GATEWAY.before = fail_once
    with elsewhere() as start:
        first = start(send, key, "/pay/wait")
        assert slow.arrived.wait(30)
        second = start(send, key, "/pay/wait")
        eventually("the duplicate to wait", lambda: waits)
        slow.go.set()
        assert first.result(30).status_code == 500
        answer = second.result(30)
    assert (answer.status_code, answer.json()["attempt"]) == (201, 2)
    assert len(GATEWAY.charges) == 1


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("outcome", ["an answer", "an error"])
def test_a_connection_that_is_cut_during_a_call_loses_nothing(key: str, outcome: str) -> None:
    """The call's result, or the key's release, is kept on a new one."""
    default = connections["default"]

    def cut() -> None:
        with default.cursor() as cursor, pytest.raises(OperationalError):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        if outcome == "an error":
            raise ValueError("the gateway is down")

    GATEWAY.after = cut
    answer = send(key)
    row = IdempotencyKey.objects.get()
    if outcome == "an answer":
        assert (answer.status_code, row.status, row.attempt) == (201, "completed", 1)
    else:
        assert (answer.status_code, row.status, row.locked_until) == (500, "failed", None)
    assert (len(GATEWAY.charges), Order.objects.count()) == (1, int(outcome == "an answer"))


@pytest.mark.parametrize("error", [timedelta(hours=-1), timedelta(hours=1)])
def test_times_are_the_databases(key: str, monkeypatch: pytest.MonkeyPatch, error: timedelta) -> None:
    """An application whose clock is an hour wrong neither takes a live lease over nor waits for a lapsed one."""
    real, real_now = time.time, timezone.now
    monkeypatch.setattr(time, "time", lambda: real() + error.total_seconds())
    monkeypatch.setattr(timezone, "now", lambda: real_now() + error)
    inner: list[Any] = []
    HOOKS["between"] = lambda operation: inner.append(send(key).status_code)
    assert send(key).status_code == 201
    assert inner == [409]
    left = IdempotencyKey.objects.get().expires_at - real_now()
    assert timedelta(hours=23, minutes=55) < left < timedelta(hours=24, minutes=5)

    other = key[::-1]
    slow = Slow()
    HOOKS["between"] = slow
    with elsewhere() as start:
        zombie = start(send, other)
        assert slow.arrived.wait(30)
        IdempotencyKey.objects.filter(status="in_progress").update(locked_until=real_now() - timedelta(seconds=1))
        assert send(other).json()["attempt"] == 2
        slow.go.set()
        zombie.result(30)
    assert (len(GATEWAY.charges), Order.objects.count()) == (2, 2)


@pytest.mark.only_on("postgresql")
def test_under_repeatable_read_a_takeover_does_not_overlook_a_call() -> None:
    """One that was started after its snapshot: it fails and is repeated, instead of running the call again."""
    store = store_for("default")
    claim = a_claim(lease=60.0)
    with transaction.atomic():
        claimed = store.claim(claim)
    assert isinstance(claimed, Claimed)
    lapse()
    looked, started = Event(), Event()

    def take_over() -> Any:
        with transaction.atomic(), connections["default"].cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")
            looked.set()
            assert started.wait(30)
            return store.claim(claim)

    with elsewhere() as start:
        rival = start(take_over)
        assert looked.wait(30)
        with transaction.atomic():
            store.start_call(claimed, "charge", again=False)
        started.set()
        error = rival.exception(30)
    assert isinstance(error, OperationalError)
    assert store.may_repeat(error)
    with transaction.atomic():
        assert store.claim(claim) == InDoubt()
