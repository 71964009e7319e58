"""Messages to PostgreSQL: each can be interrupted, and none leaves a connection that later requests fail on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, connections

from django_idempotency import Operation, StoreBusy, run_once
from django_idempotency.engine.stores import store_for
from django_idempotency.exceptions import OperationInProgress
from django_idempotency.models import IdempotencyKey
from tests.servers import eventually
from tests.shopapp.models import Order
from tests.sql import ask
from tests.strikes import Limit, Striking, lines_of, strike, striking
from tests.ways import sql

psycopg = pytest.importorskip("psycopg")
from django_idempotency.engine.stores import messages  # noqa: E402

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]


def place(key: str) -> None:
    run_once(lambda: Order.objects.create(reference=key).pk, scope="s", key=key, operation="o")


def become(state: messages.State) -> None:
    """The connection has sent what others have before."""
    raw = connection.connection
    if raw is None or getattr(raw, messages.STATE, messages.NEW).name != state.name:
        connection.close()
        for _ in range((messages.NEW, messages.USED, messages.PREPARED).index(state)):
            place(f"warm-{uuid4()}")


@pytest.mark.parametrize("state", [messages.NEW, messages.USED, messages.PREPARED], ids=lambda state: state.name)
def test_an_exception_before_any_line_poisons_no_connection(state: messages.State, in_threads: Any) -> None:
    """Those who get the connection next, from the same process or from a pool, are served and committed."""
    store = store_for("default")
    of_store = [getattr(type(store), name) for name in ("claim", "_claim_by_messages", "_write_last")]
    of_module = [messages.begin, messages.send, messages._send, messages._received, messages.may_send]
    lines = lines_of(*of_store, *of_module, messages.Statement.filled)
    expected, struck = set(), 0
    for number, (code, line) in enumerate(lines):
        for which in (1, 2):
            become(state)
            if not Striking(code, line, which).during(partial(place, f"struck-{number}-{which}")):
                break
            struck += 1
            for later in range(2):
                place(key := f"later-{number}-{which}-{later}")
                expected.add(key)

    def kept(_: int) -> tuple[set[str], set[str]]:
        orders = Order.objects.values_list("reference", flat=True)
        return set(orders), set(IdempotencyKey.objects.values_list("key", flat=True))

    ((orders, keys),) = in_threads(1, kept)
    assert orders == keys
    assert expected <= keys
    assert struck > 50


def charge_and_place(key: str) -> None:
    """Leased, with each kind of message."""

    def pay(operation: Operation) -> int:
        operation.derive_key("charge")
        operation.call("charge", lambda: 1)
        return int(operation.write("order", Order.objects.create, reference=key).pk)

    run_once(pay, scope="s", key=key, operation="p", lease=60)


def test_a_signal_before_any_line_of_a_leased_message_leaves_one_order() -> None:
    """The client's retry may come at once: the claim is released even if its answer has not been received.

    Only while the server is at work can the claim be committed later; then the lease has to run out.
    """
    store = store_for("default")
    of_store = [getattr(type(store), name) for name in ("claim", "_claim_by_messages", "_write_last", "unheard")]
    of_journal = [getattr(type(store.journal), name) for name in ("_start", "_end", "_send")]
    of_module = [messages.begin, messages.send, messages._send]
    keys = []
    charge_and_place("warms-up")
    with striking():
        for number, (code, line) in enumerate(lines_of(*of_store, *of_journal, *of_module)):
            for which in range(1, 8):
                keys.append(key := f"struck-{number}-{which}")
                if not Signal(code, line, which).during(partial(charge_and_place, key)):
                    break
                charge_and_place(key)
    assert sorted(Order.objects.values_list("reference", flat=True)) == sorted(["warms-up", *keys])
    assert set(IdempotencyKey.objects.values_list("status", "unknown", "effects")) == {("completed", 0, 1)}
    assert len(keys) > 100


class Signal(Striking):
    """Strikes by a signal's handler, as a time limit does."""

    def line(self, frame: Any, event: str, argument: Any) -> Any:
        try:
            return super().line(frame, event, argument)
        except Limit:
            strike()


@contextmanager
def waiting_for(number: int, trigger: str) -> Iterator[Callable[[], object]]:
    """Another session holds the lock with this number, for which this trigger waits. Yields what releases it.

    While this connection waits for it, a signal arrives.
    """
    sql(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_advisory_xact_lock({number}); RETURN NEW; END $$",
        f"CREATE {trigger} FOR EACH ROW EXECUTE FUNCTION waits()",
    )
    (own,) = ask("SELECT pg_backend_pid()")
    waits = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = {own}"
    held, released, failed = Event(), Event(), []

    def hold() -> None:
        try:
            ask(f"SELECT pg_advisory_lock({number})::text")
            held.set()
            eventually("it waits", lambda: ask(waits) == (1,))
            os.kill(os.getpid(), signal.SIGUSR1)
            if not released.wait(30):
                failed.append("no signal has ended the wait")
        except Exception as error:
            failed.append(repr(error))
        finally:
            connections.close_all()

    holder = Thread(target=hold)
    try:
        holder.start()
        assert held.wait(30), "no transaction held the lock"
        with striking():
            yield released.set
    finally:
        released.set()
        holder.join()
        connection.close()
        sql("DROP FUNCTION waits CASCADE")
        assert failed == []


@pytest.mark.parametrize("way", [messages.NEW, messages.USED, messages.BY_CURSOR], ids=lambda state: state.name)
def test_a_commit_that_waits_can_be_interrupted(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a standby that is gone. Order and key are kept or rolled back together, and the connection goes on."""
    place("warms-up")
    connection.close()
    connection.ensure_connection()
    setattr(connection.connection, messages.STATE, way)
    table = Order._meta.db_table
    with waiting_for(17, f"CONSTRAINT TRIGGER waits AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED") as release:
        with pytest.raises(Limit):
            place("k")
        assert connection.connection is None or connection.connection.info.transaction_status == messages.IDLE
        release()

    def retried() -> bool:
        try:
            place("k")
        except (OperationInProgress, StoreBusy):
            return False
        return True

    eventually("the server has ended the COMMIT", retried)
    place("later")
    assert Order.objects.filter(reference="k").count() == 1
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"warms-up", "k", "later"}
