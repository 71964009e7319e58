"""Scenarios of recovery, cleanup, decisions and erasure. Each makes a few keys of its own, and there are no others."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection

from django_idempotency import Operation, Result, once
from django_idempotency.admin.decisions import _carry_out
from django_idempotency.maintenance import (
    Snapshot,
    cleanup_idempotency_keys,
    close_with,
    find_key,
    forget,
    forget_scope,
    record_outcome,
    recover_idempotency_keys,
    release_for_retry,
    resolve_all,
)
from django_idempotency.metrics import KeyCollector
from tests.interrupts.strikes import atomic, books, leased
from tests.interrupts.strikes.engine import Run
from tests.interrupts.strikes.scenarios import Problems, Scenario, nothing

SCOPE = "s"
ANSWER = Snapshot(status_code=200, headers=(("Content-Type", "application/json"),), body=b'{"value": 1}')


def look(operation: Operation) -> Any:
    """Find out what became of the charge, and make the order."""
    if "charge" in operation.in_doubt:
        operation.call("charge", lambda: {"id": "found"})
    return Result(operation.write("order", leased.order, operation.key), replayed=False)


@once(scope=SCOPE, key=lambda key: key, operation="struck payment", lease=leased.LEASE, reconcile=look)
def declared(key: str, operation: Operation | None = None) -> Any:
    raise AssertionError("only its reconcile runs")


def command(name: str, **options: Any) -> None:
    """Run it; that keys need attention is no error here."""
    try:
        call_command(name, stdout=io.StringIO(), stderr=io.StringIO(), **options)
    except CommandError as error:
        if "need attention" not in str(error).lower():
            raise


def names(key: str, *suffixes: str) -> list[str]:
    return [f"{key}-{suffix}" for suffix in suffixes]


# --- recovery


def to_recover(key: str) -> None:
    books.empty()
    doubt, half, abandoned = names(key, "doubt", "half", "abandoned")
    leased.in_doubt(doubt)
    leased.charged(half)
    leased.abandoned_in_doubt(abandoned)


def recover(key: str) -> Any:
    return recover_idempotency_keys(older_than=0)


def recover_again(key: str) -> Any:
    for name in names(key, "doubt", "half", "abandoned"):
        books.lapse(name)
    return recover(key)


def recovering(key: str, run: Run) -> Problems:
    yield from books.all_miscounts()
    for name in names(key, "doubt", "half", "abandoned"):
        number, done = books.orders(name), books.is_done(name)
        if number > 1 or (done and not number):
            yield f"{number} orders, and the key is {'completed' if done else 'not completed'}"
        if books.row(name) is None:
            yield "a key that needs attention is gone"
        yield from leased.one_call(name)


def recovered(key: str) -> Problems:
    yield from books.all_miscounts()
    for name in names(key, "doubt", "half", "abandoned"):
        if books.orders(name) != 1 or not books.is_done(name):
            yield f"in the end there are {books.orders(name)} orders, and the key is {books.row(name)}"
        yield from leased.one_call(name)


# --- cleanup

LIVE, DEAD, STUCK = ("live", "doubt", "half"), ("gone", "gone2", "gone3"), ("stuck", "stuck2")


def to_clean(key: str) -> None:
    books.empty()
    live, doubt, half = names(key, *LIVE)
    atomic.place(live)
    leased.in_doubt(doubt)
    leased.charged(half)
    for name in names(key, *DEAD):
        atomic.place(name)
        books.expire(name)
    for name in (doubt, half):
        books.expire(name)
    for name in names(key, *STUCK):
        leased.ends(_fetches_and_fails, name)
        leased.as_if_killed(name)


def _fetches_and_fails(operation: Operation) -> None:
    operation.fetch("rate", lambda: 3)
    raise leased.Refused


def clean(key: str) -> Any:
    return cleanup_idempotency_keys(batch_size=2)


def cleaning(key: str, run: Run) -> Problems:
    yield from books.all_miscounts()
    for name in names(key, *LIVE, *STUCK):
        if books.row(name) is None:
            yield "a key that is in use is gone"


def cleaned(key: str) -> Problems:
    yield from cleaning(key, Run())
    for name in names(key, *DEAD):
        if books.row(name) is not None:
            yield "an expired key is left"
    for name in names(key, *STUCK):
        if (row := books.row(name)) is not None and row.status != "failed":
            yield f"a stuck key is {row.status}"


# --- decisions


def to_decide(key: str) -> None:
    books.empty()
    leased.in_doubt(key)


def release(key: str) -> None:
    release_for_retry(find_key(key).get(), by="me", reason="r")


def record(key: str) -> None:
    record_outcome(find_key(key).get(), "charge", {"id": "7"}, by="me", reason="r")


def close(key: str) -> None:
    close_with(find_key(key).get(), ANSWER, by="me", reason="r")


def to_release_all(key: str) -> None:
    to_decide(key)
    for name in names(key, "2", "3"):
        leased.in_doubt(name)


def release_all(key: str) -> Any:
    rows = [find_key(name).get() for name in (key, *names(key, "2", "3"))]
    return resolve_all(rows, release_for_retry, by="me", reason="r")


def release_in_the_admin(key: str) -> None:
    """The page's log is written with the decision."""
    page = SimpleNamespace(log_change=lambda *_: leased.order(f"{key}-log"), message_user=nothing)
    form = SimpleNamespace(
        decision=lambda: (release_for_retry, (), "done"), cleaned_data={"reason": "r", "confirmed": True}
    )
    shown = SimpleNamespace(facts=SimpleNamespace(row=find_key(key).get()))
    _carry_out(page, SimpleNamespace(user=User(username="me")), [shown], form, 1)  # type: ignore[arg-type, list-item]


def logged(key: str, run: Run) -> Problems:
    yield from decided(is_settled)(key, run)
    if is_settled(books.row(key)) != books.orders(f"{key}-log"):
        yield "the decision and its log are torn"


def decided(made: Callable[[Any], bool]) -> Callable[[str, Run], Problems]:
    """The decision is made, and stands in the key's trail; or neither."""

    def after(key: str, run: Run) -> Problems:
        yield from books.all_miscounts()
        row = books.row(key)
        if row is None:
            yield "the key is gone"
        elif made(row) != bool(row.decisions):
            yield f"a half decision: {row.status}, {row.unknown} unknown, {row.decisions}"
        elif run.error is None and not made(row):
            yield "the decision was acknowledged, and is not made"
        yield from leased.one_call(key)

    return after


def decide_again(decide: Callable[[str], Any], made: Callable[[Any], bool]) -> Callable[[str], Any]:
    """The person sees that nothing was decided, and decides again; then the client sends its request again."""

    def again(key: str) -> Any:
        if not made(books.row(key)):
            decide(key)
        return leased.pay(key)

    return again


def one_order(key: str) -> Problems:
    yield from books.all_miscounts()
    yield from leased.one_charge(key)
    if books.orders(key) != 1 or not books.is_done(key):
        yield f"in the end there are {books.orders(key)} orders, and the key is {books.row(key)}"


def one_order_after_the_recorded_call(key: str) -> Problems:
    yield from one_order(key)
    yield from leased.one_call(key)


def no_order(key: str) -> Problems:
    yield from books.all_miscounts()
    yield from leased.one_call(key)
    if books.orders(key) or not books.is_done(key):
        yield f"in the end there are {books.orders(key)} orders, and the key is {books.row(key)}"


def decision(
    decide: Callable[[str], Any], made: Callable[[Any], bool], *, prepare: Callable[[str], Any] = to_decide, **more: Any
) -> Scenario:
    return Scenario(
        **{
            "act": decide,
            "prepare": prepare,
            "after": decided(made),
            "retry": decide_again(decide, made),
            "end": one_order,
            "leased": True,
            **more,
        }
    )


def is_settled(row: Any) -> bool:
    return not row.unknown


def is_closed(row: Any) -> bool:
    return bool(row.status == "completed")


# --- erasure

KEPT, FORGOTTEN = ("doubt", "half"), ("done", "done2", "done3")


def to_forget(key: str) -> None:
    books.empty()
    doubt, half = names(key, *KEPT)
    leased.in_doubt(doubt)
    leased.charged(half)
    for name in names(key, *FORGOTTEN):
        leased.pay(name)


def forget_each(key: str) -> None:
    for name in names(key, *FORGOTTEN):
        forget(SCOPE, name)


def forget_all(key: str) -> None:
    forget_scope(SCOPE)


def forgetting(key: str, run: Run) -> Problems:
    yield from books.all_miscounts()
    for name in names(key, *KEPT):
        if books.row(name) is None:
            yield "a key that needs attention is gone"


def forgotten(key: str) -> Problems:
    yield from forgetting(key, Run())
    if any(books.row(name) for name in names(key, *FORGOTTEN)):
        yield "a key is not forgotten"


# --- gauges


GAUGES = KeyCollector()


def scrape(key: str) -> Any:
    return list(GAUGES.collect())


def scraped(key: str, run: Run) -> Problems:
    """The next scrape, in another thread as that of each request, is not kept waiting by the one that was struck."""
    with ThreadPoolExecutor(1) as thread:
        families = {family.name: family.samples for family in thread.submit(scrape, key).result()}
    if families["idempotency_keys_database_unavailable"][0].value:
        yield "the gauges are old"


RECOVERY = {"prepare": to_recover, "after": recovering, "retry": recover_again, "end": recovered, "leased": True}
CLEANUP = {"prepare": to_clean, "after": cleaning, "retry": clean, "end": cleaned}
ERASURE = {"prepare": to_forget, "after": forgetting, "end": forgotten}
SCENARIOS = {
    "recovery": Scenario(act=recover, **RECOVERY),
    "recovery, command": Scenario(act=lambda key: command("recover_idempotency_keys", older_than=0), **RECOVERY),
    "cleanup": Scenario(act=clean, **CLEANUP),
    "cleanup, command": Scenario(act=lambda key: command("cleanup_idempotency_keys", batch_size=2), **CLEANUP),
    "decision: release": decision(release, is_settled),
    "decision: record": decision(record, is_settled, end=one_order_after_the_recorded_call),
    "decision: close": decision(close, is_closed, end=no_order),
    "decision: release, in the admin": decision(release_in_the_admin, is_settled, after=logged),
    "decision: release all": decision(release_all, is_settled, prepare=to_release_all),
    "forget": Scenario(act=forget_each, **ERASURE),
    "forget a scope": Scenario(act=forget_all, **ERASURE),
    # In Django's pool, an exception inside Django's own `close()` loses the connection, as at the end of a request.
    "gauges": Scenario(act=scrape, after=scraped, only_on=("messages", "cursor", "psycopg2", "sqlite", "mysql")),
    "gauges, on an open connection": Scenario(
        act=scrape,
        prepare=lambda key: connection.ensure_connection(),
        let_go=lambda key: connection.close(),
        after=scraped,
    ),
}
