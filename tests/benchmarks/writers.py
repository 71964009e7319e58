"""64 connections that write at once, without Django between: what PostgreSQL's sessions wait for."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import getrandbits
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread
from typing import Any

from django.db import connection, connections

from django_idempotency.engine.protocol.claims import ClaimRequest
from django_idempotency.engine.protocol.digests import Identity
from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.protocol.snapshots import Snapshot
from django_idempotency.engine.stores import store_for
from tests.benchmarks.filling import truncate
from tests.benchmarks.page import table

TITLE = "64 writers"
WRITERS = 64
NAME = "writer"
LOOK = 0.005
"""Seconds between two looks at what the sessions wait for."""
SHOWN = 4
KEY_HASH, SCOPE_HASH, ROW_ID = 7_100_000_000_000_001, 7_100_000_000_000_002, 7_100_000_000_000_003
"""What each transaction replaces in the statements by its own."""
LOCK = re.compile(r" AND pg_try_advisory_xact_lock\(\S+?\)")
ORDER = "INSERT INTO shopapp_order (reference, amount) VALUES ('tea', 3)"
WAITS = f"""
    SELECT COALESCE(wait_event_type || ' ' || wait_event, 'none: it runs'), count(*) FROM pg_stat_activity
    WHERE application_name = '{NAME}' AND state = 'active' GROUP BY 1
"""
Transaction = Generator[str, Any, None]
"""The messages of one transaction. Each gets the results of the one before."""


@dataclass
class Figures:
    """Of one case: transactions per second in each round, and what the active sessions were seen waiting for."""

    rates: list[float] = field(default_factory=list)
    waits: Counter[str] = field(default_factory=Counter)

    def ratio(self, bare: Figures) -> float:
        return statistics.median(a / b for a, b in zip(self.rates, bare.rates, strict=True))


Measured = dict[str, Figures]


def bare() -> Transaction:
    yield "BEGIN"
    yield ORDER
    yield "COMMIT"


def keyed(claim: str, result: str) -> Transaction:
    hashes = {str(KEY_HASH): str(getrandbits(62)), str(SCOPE_HASH): str(getrandbits(62))}
    (claimed,) = (one for one in (yield f"BEGIN; {_with(claim, hashes)}") if one.ntuples)
    yield ORDER
    yield f"{_with(result, hashes | {str(ROW_ID): claimed.get_value(0, 0).decode()})}; COMMIT"


def _with(sql: str, values: dict[str, str]) -> str:
    for old, new in values.items():
        sql = sql.replace(old, new)
    return sql


def statements() -> tuple[str, str]:
    """The store's claim and result, as text, for the numbers that each transaction replaces."""
    store: Any = store_for("default")
    identity = Identity(
        key_hash=KEY_HASH, scope_hash=SCOPE_HASH, scope="user:auth.User:1", operation="POST orders/", key="k" * 36
    )
    claimed = Claimed(key_hash=KEY_HASH, scope_hash=SCOPE_HASH, id=ROW_ID, attempt=1)
    snapshot = Snapshot(status_code=201, headers=(("Content-Type", "application/json"),), body=b'{"id": 1}')
    wanted = ClaimRequest(identity=identity, fingerprint=b"f" * 32, ttl=86400)
    with connection.cursor() as cursor:
        as_text: Callable[..., str] = cursor.cursor.mogrify
        claim = as_text(store._insert_sql, store._insert_params(wanted))
        params = [snapshot.status_code, '[["Content-Type", "application/json"]]', snapshot.body, *claimed.fence]
        return claim, as_text(store._sql.complete(until=False, about=False), params)


def measure(*, quick: bool) -> Measured:
    rounds, seconds = (1, 0.5) if quick else (5, 2)
    claim, result = statements()
    without, count = LOCK.subn("", claim)
    assert count == 1, claim
    cases: dict[str, Callable[[], Transaction]] = {
        "no key": bare,
        "with a key": lambda: keyed(claim, result),
        "with a key, without the advisory lock": lambda: keyed(without, result),
    }
    measured = {name: Figures() for name in cases}
    truncate()
    with _connected() as writers:
        for _ in range(rounds):
            for name, begin in cases.items():
                with _watched(measured[name].waits):
                    measured[name].rates.append(_rate(writers, begin, seconds))
    return measured


@contextmanager
def _connected() -> Iterator[list[Any]]:
    """libpq's connections."""
    wrappers = [connection.copy() for _ in range(WRITERS)]
    try:
        for one in wrappers:
            one.settings_dict = {**one.settings_dict, "OPTIONS": {"application_name": NAME}}
            one.ensure_connection()
        yield [one.connection.pgconn for one in wrappers]
    finally:
        for one in wrappers:
            one.close()


@contextmanager
def _watched(waits: Counter[str]) -> Iterator[None]:
    """Count meanwhile what the writers wait for."""
    stop = Event()

    def watch() -> None:
        with connection.cursor() as cursor:
            while not stop.wait(LOOK):
                cursor.execute(WAITS)
                waits.update(dict(cursor.fetchall()))
        connections.close_all()

    thread = Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _rate(writers: list[Any], begin: Callable[[], Transaction], seconds: float) -> float:
    """Transactions per second. Those that run when the time is up come to their end, and count."""
    done, started = 0, time.perf_counter()
    with DefaultSelector() as selector:
        running = {}
        for writer in writers:
            selector.register(writer.socket, EVENT_READ, writer)
            running[writer.socket] = transaction = begin()
            writer.send_query(next(transaction).encode())
        while running:
            for key, _ in selector.select():
                writer = key.data
                writer.consume_input()
                if writer.is_busy():
                    continue
                try:
                    message = running[writer.socket].send(_results(writer))
                except StopIteration:
                    done += 1
                    if time.perf_counter() - started > seconds:
                        del running[writer.socket]
                        selector.unregister(writer.socket)
                        continue
                    running[writer.socket] = transaction = begin()
                    message = next(transaction)
                writer.send_query(message.encode())
    return done / (time.perf_counter() - started)


def _results(writer: Any) -> list[Any]:
    found = []
    while (result := writer.get_result()) is not None:
        assert not result.error_message, result.error_message
        found.append(result)
    return found


def told(measured: Measured) -> str:
    plain = measured["no key"]
    rows = [
        [
            name,
            f"{statistics.median(one.rates):.0f}, ×{one.ratio(plain):.2f}",
            ", ".join(f"{event} {count / one.waits.total():.0%}" for event, count in one.waits.most_common(SHOWN)),
        ]
        for name, one in measured.items()
    ]
    return table(["", "transactions/s", "what the active sessions wait for"], rows)


def drawn(measured: Measured) -> dict[str, str]:
    return {}
