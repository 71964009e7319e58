"""Leased mode: the server has done what a message says, and the connection breaks. See Note [Lost answers]."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_idempotency import StoreBusy, run_once
from django_idempotency.maintenance import needs_attention
from django_idempotency.models import IdempotencyKey
from tests.heard import heard
from tests.http import post_empty
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import lapse, row
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order
from tests.sql import ask, isolated
from tests.tap import Tap, tapped
from tests.ways import going, warm_up
from tests.works import charge_and_place

OTHERS_AT_WORK = """SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
AND backend_type = 'client backend'"""
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.leased_urls"),
]


MESSAGES = {"prepared": 7, "cursor": 21}
"""Of a call and a write, by each way. A message and a statement by Django's cursor have the same rules."""


@pytest.fixture(params=MESSAGES)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tap(way: str) -> Iterator[Tap]:
    with going(way), tapped() as tap:
        warm_up()
        tap.take()
        yield tap


def test_nothing_happens_twice_whichever_answer_is_lost(tap: Tap, way: str, key: str) -> None:
    """One charge and one order; the client gets its answer, at the latest by a retry, and no key waits for a person."""
    post_empty(key)
    messages = tap.take()
    assert len(messages) == MESSAGES[way]
    statuses = []
    for number in range(1, len(messages) + 1):
        GATEWAY.reset()
        Order.objects.all().delete()
        IdempotencyKey.objects.all().delete()
        tap.lose_answer(number)
        statuses.append(post_empty(f"{key}-{number}").status_code)
        connection.close_if_unusable_or_obsolete()
        # Until then, its transaction holds the key, and a retry is rightly a conflict.
        eventually("the server to end the lost session", lambda: ask(OTHERS_AT_WORK) == (0,))
        before = row() if IdempotencyKey.objects.exists() else None
        if before is not None and before.status == "in_progress":
            assert not GATEWAY.calls, "only a claim whose answer is lost waits for its lease"
        lapse()
        answer = post_empty(f"{key}-{number}")
        assert answer.status_code == 201
        about = messages[number - 1]
        assert (len(GATEWAY.charges), Order.objects.count(), row().status) == (1, 1, "completed"), about
        # The worker does not know whether the start was committed: nothing is called before that is certain.
        assert GATEWAY.calls == 1, about
    # The end of a call and the completion are sent again, or looked up. Before the claim is known, nothing has run.
    assert {201, 500, 503} == set(statuses)


def test_held_a_call_is_in_doubt_from_its_start_on(tap: Tap, key: str) -> None:
    """The COMMIT of the start was answered by nobody. Nothing is called before that is certain."""
    HOOKS["between"] = lambda operation: None
    post_empty(key, "/pay/hold")
    messages = tap.take()
    start = next(n for n, text in enumerate(messages, 1) if "idempotencystep" in text and "INSERT" in text)
    commit = next(n for n, text in enumerate(messages, 1) if n >= start and "COMMIT" in text)
    GATEWAY.reset()
    tap.lose_answer(commit)
    assert post_empty(f"{key}-2", "/pay/hold").status_code == 500
    assert post_empty(f"{key}-2", "/pay/hold").json()["code"] == "outcome-unknown"
    assert GATEWAY.calls == 0


def test_a_view_that_catches_the_lost_start_does_not_complete_the_key(tap: Tap, key: str) -> None:
    """Its worker knows of no doubt. The row counts the start, so the key fails, and a person sees it."""

    def catches(request: Any) -> str:
        try:
            request.idempotency.call("charge", GATEWAY.charge, "k")
        except OperationalError:
            connection.close()
            return "sorry"
        return "charged"

    HOOKS["view"] = catches
    post_empty(key, "/hooked/hold")
    messages = tap.take()
    start = next(n for n, text in enumerate(messages, 1) if "idempotencystep" in text and "INSERT" in text)
    commit = next(n for n, text in enumerate(messages, 1) if n >= start and "COMMIT" in text)
    GATEWAY.reset()
    tap.lose_answer(commit)
    with heard() as told:
        answer = post_empty(f"{key}-2", "/hooked/hold")
    assert (answer.status_code, answer.json(), GATEWAY.calls) == (201, {"result": "sorry"}, 0)
    assert [event["event"] for event in told] == ["claimed", "released"]
    lost = IdempotencyKey.objects.get(key=f"{key}-2")
    assert (lost.status, lost.unknown, needs_attention().count()) == ("failed", 1, 1)
    assert lost.last_error == "The work answered, and it is unknown whether one of its steps took effect."
    assert post_empty(f"{key}-2", "/hooked/hold").status_code == 409


def test_a_claim_drops_a_broken_connection(tap: Tap) -> None:
    """A worker that lives long has no end of a request, at which Django would drop the connection."""
    connection.ensure_connection()
    tap.cut()
    with pytest.raises(StoreBusy):
        run_once(charge_and_place, scope="s", key="k", lease=60, operation="pay")
    assert run_once(charge_and_place, scope="s", key="k", lease=60, operation="pay").replayed is False


@pytest.mark.uncounted
def test_a_connection_that_cannot_be_opened_is_left_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next claim opens it."""
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nowhere")
    with pytest.raises(StoreBusy):
        run_once(charge_and_place, scope="s", key="k", lease=60, operation="pay")
    assert connection.connection is None


def test_no_transaction_is_open_between_the_steps(key: str) -> None:
    """Neither for Django nor for the driver."""
    states: list[Any] = []

    def look() -> None:
        raw: Any = connection.connection
        states.append((connection.in_atomic_block, raw.autocommit, raw.info.transaction_status.name))

    GATEWAY.before = look
    HOOKS["between"] = HOOKS["at the end"] = lambda operation: look()
    assert post_empty(key).status_code == 201
    assert states == [(False, True, "IDLE")] * 3


def test_a_write_whose_commit_cannot_be_looked_up_completes_nothing(
    tap: Tap, way: str, key: str, monkeypatch: Any
) -> None:
    """A failover: its COMMIT is done and not heard of, and the next connections are refused. The view answers "no"."""
    wrapper: Any = connections["default"]
    refused: list[int] = []
    connect = wrapper.connect

    def connect_later() -> None:
        if refused:
            refused.pop()
            raise OperationalError("connection refused")
        connect()

    def create() -> None:
        Order.objects.create(reference=key)
        tap.lose_answer({"prepared": 1, "cursor": 3}[way])  # that of the COMMIT, after the row and the step
        refused.extend([1, 2])

    def swallows(request: Any) -> str:
        with suppress(OperationalError):
            request.idempotency.write("order", create)
        return "no order"

    monkeypatch.setattr(wrapper, "connect", connect_later)
    HOOKS["view"] = swallows
    post_empty(key, "/hooked")
    assert (refused, Order.objects.count(), row().status) == ([], 1, "failed")
    assert post_empty(key, "/hooked").json() == {"result": "no order"}
    assert Order.objects.count() == 1


DEFERRED = """CREATE FUNCTION deferred() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock(59); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON shopapp_order DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION deferred()"""
NOT_DEFERRED = "DROP TRIGGER deferred ON shopapp_order; DROP FUNCTION deferred"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype"


def test_a_write_whose_commit_is_still_at_work_completes_nothing(tap: Tap, key: str) -> None:
    """The connection breaks while the server commits. Whoever looks for the step waits until that has ended."""
    held = Event()

    def cuts_the_commit() -> None:
        ask("SELECT pg_advisory_lock(59)")
        held.set()
        eventually("the COMMIT to wait", lambda: ask(f"{WAITING} = 'advisory'") == (1,))
        tap.cut()
        eventually("the worker to wait for it", lambda: ask(f"{WAITING} IN ('transactionid', 'tuple')") != (0,))

    def swallows(request: Any) -> str:
        with suppress(OperationalError):
            request.idempotency.write("order", lambda: Order.objects.create(reference=key).pk)
        return "no order"

    HOOKS["view"] = swallows
    with ThreadPoolExecutor(1) as pool:
        pool.submit(isolated(execute), DEFERRED).result(DEADLINE)
        try:
            cut = pool.submit(isolated(cuts_the_commit))
            assert held.wait(DEADLINE), "the COMMIT was never held up"
            post_empty(key, "/hooked")
            cut.result(DEADLINE)
        finally:
            pool.submit(isolated(execute), NOT_DEFERRED).result(DEADLINE)
    assert (Order.objects.count(), row().status) == (1, "failed")


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
