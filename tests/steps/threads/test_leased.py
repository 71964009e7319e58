"""Leased mode with real threads: waiting duplicates, clocks, and late workers beside those of the contract."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.utils import timezone

from django_idempotency import TransactionBroken, run_once
from django_idempotency.engine.protocol.outcomes import Claimed, InDoubt
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import a_claim
from tests.contracts.test_leased import elsewhere
from tests.http import post_empty
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import Slow, lapse
from tests.servers import eventually
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.leased_urls")]


@pytest.mark.only_on("postgresql", "mysql")
def test_a_late_worker_in_the_middle_of_a_write_cannot_be_overtaken(key: str) -> None:
    """It has locked the row: duplicates are told so at once, and its write and completion stand."""
    slow = Slow()

    def write(operation: Any) -> None:
        lapse()
        operation.write("slow", slow)

    HOOKS["between"] = write
    with elsewhere() as start:
        late = start(post_empty, key)
        assert slow.arrived.wait(30), "the first worker never got to its pause"
        assert post_empty(key).status_code == 409
        slow.go.set()
        assert late.result(30).json()["attempt"] == 1
    assert post_empty(key).headers["Idempotency-Replayed"] == "true"
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)


def test_held_a_late_worker_still_brings_its_result(key: str) -> None:
    """Its lease is over and a call in doubt: nobody else runs, so it may finish."""
    slow = Slow()
    GATEWAY.before = slow
    with elsewhere() as start:
        late = start(post_empty, key, "/pay/hold")
        assert slow.arrived.wait(30), "the first worker never got to its pause"
        lapse()
        assert post_empty(key, "/pay/hold").json()["code"] == "outcome-unknown"
        slow.go.set()
        assert late.result(30).status_code == 201
    assert post_empty(key, "/pay/hold").headers["Idempotency-Replayed"] == "true"
    assert (GATEWAY.calls, len(GATEWAY.charges)) == (1, 1)


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
        first = start(post_empty, key, "/pay/wait")
        assert slow.arrived.wait(30), "the first worker never got to its pause"
        second = start(post_empty, key, "/pay/wait")
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
        first = start(post_empty, key, "/pay/wait")
        assert slow.arrived.wait(30), "the first worker never got to its pause"
        second = start(post_empty, key, "/pay/wait")
        eventually("the duplicate to wait", lambda: waits)
        slow.go.set()
        assert first.result(30).status_code == 500
        answer = second.result(30)
    assert (answer.status_code, answer.json()["attempt"]) == (201, 2)
    assert len(GATEWAY.charges) == 1


def cut() -> None:
    """The server ends this thread's connection."""
    with connections["default"].cursor() as cursor, pytest.raises(OperationalError):
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("outcome", ["an answer", "an error"])
def test_a_connection_that_is_cut_during_a_call_loses_nothing(key: str, outcome: str) -> None:
    """The call's result, or the key's release, is kept on a new one."""

    def after() -> None:
        cut()
        if outcome == "an error":
            raise ValueError("the gateway is down")

    GATEWAY.after = after
    answer = post_empty(key)
    row = IdempotencyKey.objects.get()
    if outcome == "an answer":
        assert (answer.status_code, row.status, row.attempt) == (201, "completed", 1)
    else:
        assert (answer.status_code, row.status, row.locked_until) == (500, "failed", None)
    assert (len(GATEWAY.charges), Order.objects.count()) == (1, int(outcome == "an answer"))


@pytest.mark.only_on("postgresql")
def test_a_response_that_cannot_be_stored_is_an_error(key: str) -> None:
    """The client sends again, which repeats no step, and completes the key. A response would leave it open for ever."""
    HOOKS["at the end"] = lambda operation: cut()
    answer, row = post_empty(key), IdempotencyKey.objects.get()
    of_psycopg2 = "django.db.utils.InterfaceError"
    assert (answer.status_code, row.status) == (500, "failed")
    assert str(row.last_error).startswith(("django.db.utils.OperationalError", of_psycopg2))
    HOOKS.clear()
    retry = post_empty(key)
    assert (retry.status_code, retry.json()["attempt"]) == (201, 2)
    assert (GATEWAY.calls, Order.objects.count()) == (1, 1)
    assert post_empty(key).content == retry.content


def test_a_fetch_whose_answer_is_lost_is_kept_once(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent again, and the second finds the first one's result."""
    wrapper: Any = connections["default"]
    fetched: list[float] = []

    def commit() -> None:
        type(wrapper).commit(wrapper)
        if fetched and fetched.pop():
            raise OperationalError("the connection is lost")

    monkeypatch.setattr(wrapper, "commit", commit)
    HOOKS["view"] = lambda request: request.idempotency.fetch("rate", lambda: fetched.append(1.5) or 1.5)
    assert post_empty(key, "/hooked").json() == {"result": 1.5}
    assert IdempotencyStep.objects.get().result == '{"value": 1.5}'


@pytest.mark.parametrize("error", [timedelta(hours=-1), timedelta(hours=1)])
def test_times_are_the_databases(key: str, monkeypatch: pytest.MonkeyPatch, error: timedelta) -> None:
    """An application whose clock is an hour wrong neither takes a live lease over nor waits for a lapsed one."""
    real, real_now = time.time, timezone.now
    monkeypatch.setattr(time, "time", lambda: real() + error.total_seconds())
    monkeypatch.setattr(timezone, "now", lambda: real_now() + error)
    inner: list[Any] = []
    HOOKS["between"] = lambda operation: inner.append(post_empty(key).status_code)
    assert post_empty(key).status_code == 201
    assert inner == [409]
    left = IdempotencyKey.objects.get().expires_at - real_now()
    assert timedelta(days=34, hours=23, minutes=55) < left < timedelta(days=35, minutes=5)

    other = key[::-1]
    slow = Slow()
    HOOKS["between"] = slow
    with elsewhere() as start:
        zombie = start(post_empty, other)
        assert slow.arrived.wait(30), "the first worker never got to its pause"
        IdempotencyKey.objects.filter(status="in_progress").update(locked_until=real_now() - timedelta(seconds=1))
        assert post_empty(other).json()["attempt"] == 2
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
            assert started.wait(30), "the call never began"
            return store.claim(claim)

    with elsewhere() as start:
        rival = start(take_over)
        assert looked.wait(30), "the rival never had its snapshot"
        with transaction.atomic():
            store.journal.start_call(claimed, "charge", keyed=False)
        started.set()
        error = rival.exception(30)
    assert isinstance(error, OperationalError)
    assert store.code(error) in store.repeatable
    with transaction.atomic():
        assert store.claim(claim) == InDoubt()


@pytest.mark.only_on("mysql")
def test_a_deadlock_that_a_write_has_caught_does_not_lock_the_key_for_its_lease() -> None:
    """The server has rolled back all of the write. The owner is no zombie: it fails the key, and the retry runs."""
    first, second = (Order.objects.create(reference=reference) for reference in ("first", "second"))
    heavy = [Order.objects.create(reference="heavy").pk for _ in range(50)]
    locked, go = Event(), Event()

    def other() -> None:
        with transaction.atomic():
            Order.objects.filter(pk__in=heavy).update(reference="changed")  # InnoDB ends the lighter transaction
            Order.objects.filter(pk=second.pk).update(reference="other")
            locked.set()
            assert go.wait(30), "the write never had its first lock"
            Order.objects.filter(pk=first.pk).update(reference="other")

    def write() -> int:
        Order.objects.filter(pk=first.pk).update(reference="lost")
        go.set()
        with suppress(OperationalError):
            Order.objects.select_for_update().get(pk=second.pk)
        return Order.objects.create(reference="after the deadlock").pk

    def work(operation: Any) -> None:
        operation.call("charge", lambda: 1)
        operation.write("order", write)

    with elsewhere() as start:
        done = start(other)
        assert locked.wait(30), "the other transaction never had its locks"
        with pytest.raises(
            TransactionBroken, match=r"rolled back the transaction of operation.write\('order'\).*deadlock"
        ):
            run_once(work, scope="s", key="k", operation="pay", lease=60)
        done.result(30)
    assert not Order.objects.filter(reference__in=["lost", "after the deadlock"]).exists()
    row = IdempotencyKey.objects.get()
    assert (row.status, row.locked_until) == ("failed", None)
    assert list(IdempotencyStep.objects.values_list("name", flat=True)) == ["charge"]
    assert (
        run_once(lambda operation: operation.call("charge", int), scope="s", key="k", operation="pay", lease=60).value
        == 1
    )
