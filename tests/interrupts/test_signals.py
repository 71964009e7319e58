"""Signals: a process that is told to stop releases its leased key, and one that lives on keeps its promises."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from inspect import isfunction
from typing import Any

import pytest
from django.db import transaction

from django_idempotency import Operation, run_once
from django_idempotency.engine.execution import atomic, claiming
from django_idempotency.engine.execution.commits import committed
from django_idempotency.engine.execution.table import TableJournal
from django_idempotency.engine.stores import store_for, transactions
from django_idempotency.models import IdempotencyKey
from tests.servers import DEADLINE, server_environment
from tests.shopapp.models import Order
from tests.strikes import Limit, Striking, lines_of

PROGRAM = """
import django; django.setup()
import signal, sys, time
from django.test import Client
from django.urls import path
from django.http import HttpResponse
from django.conf import settings
from django_idempotency import idempotent

# As the docs advise for scripts: the package installs no handler. By default SIGTERM ends a process at once.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
# As in a terminal: where the tests run in the background, Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def hang():
    print("in the call", flush=True)
    time.sleep(3600)

@idempotent(lease=3600)
def hangs(request):
    request.idempotency.call("charge", hang)

urlpatterns = [path("pay", hangs)]
settings.ROOT_URLCONF = __name__
Client().post("/pay", headers={"Idempotency-Key": "k"})
"""


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_releases_the_key(number: int, status: int) -> None:
    """SIGTERM with the handler of the docs, and Ctrl-C: the call is in doubt, and the lease is over."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=server_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "in the call\n"
            process.send_signal(number)
            assert process.wait(DEADLINE) == status
        finally:
            process.kill()
    row = IdempotencyKey.objects.get()
    assert (row.status, row.locked_until, row.attempt) == ("failed", None, 1)
    assert list(row.steps.values_list("name", "finished_at")) == [("charge", None)]


INTERRUPTED = """
import django; django.setup()
import json, random, signal, time
from django.db import connection
from django_idempotency import run_once
from tests.shopapp.models import Order

class TimeLimit(Exception):
    pass

def raises(*_):
    global armed
    if armed:
        armed = False
        raise TimeLimit

def place(key):
    return run_once(lambda: Order.objects.create(reference=key).pk, scope="s", key=key, operation="place")

def is_left_open():
    raw = connection.connection
    return connection.in_atomic_block or raw is not None and raw.info.transaction_status.name != "IDLE"

armed = False
signal.signal(signal.SIGALRM, raises)
began = time.perf_counter()
for number in range(50):
    place(f"warm-{number}")
longest = (time.perf_counter() - began) / 50 * 1.2
moments = random.Random(SEED)
answered, interrupted, left_open = [], 0, 0
for number in range(TIMES):
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, longest))
        place(str(number))
        answered.append(str(number))
    except Exception as error:
        interrupted += 1
        while not isinstance(error, TimeLimit):  # Django's clean-up may raise an error of its own
            error = error.__context__
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    left_open += is_left_open()
print(json.dumps({"answered": answered, "interrupted": interrupted, "left_open": left_open}))
for number in range(TIMES):
    place(str(number))
"""
SEED, TIMES = 44, 1000
"""A plan is repeated by its seed, as far as a clock lets it."""


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_signal_at_any_moment_loses_nothing() -> None:
    """As soft time limits do it: a handler raises, and the process goes on with its connection. What was answered is
    committed, no transaction stays open, and each retry makes the one order.
    """
    program = f"SEED, TIMES = {SEED}, {TIMES}\n{INTERRUPTED}"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=server_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        orders = Counter(Order.objects.values_list("reference", flat=True))
        assert process.wait(DEADLINE) == 0
    assert told["interrupted"] > TIMES / 4
    assert (told["left_open"], [key for key in told["answered"] if orders[key] != 1]) == (0, [])
    after = Counter(Order.objects.exclude(reference__startswith="warm").values_list("reference", flat=True))
    assert after == {str(number): 1 for number in range(TIMES)}


AROUND = (
    *(Operation._look_up, committed, transactions.atomically),
    *(transactions.Transaction.begin, transactions.Transaction.end, transactions.Transaction.guard),
    *(transaction.Atomic.__enter__, transaction.Atomic.__exit__),
)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", ["call", "write"])
def test_an_exception_before_any_line_of_a_step_hides_nothing(step: str, in_threads: Any) -> None:
    """The work gives up at it, with an answer that says so. That completes no key whose step took effect, and what
    comes next on the connection is committed."""
    of_call = (Operation._start, Operation._finish, TableJournal.start_call, TableJournal.finish_call)
    of_step = of_call if step == "call" else (Operation._written, Operation._write, TableJournal.write)
    effects: list[str] = []

    def work(operation: Operation) -> str:
        key = str(operation.key)
        try:
            getattr(operation, step)("step", lambda: effects.append(key) or Order.objects.create(reference=key).pk)
        except Limit:
            return "time is up"
        return "done"

    def note(operation: Operation) -> None:
        operation.write("note", Order.objects.create, reference="note")

    hidden, strikes = [], 0
    for code, line in lines_of(*of_step, *AROUND):
        for which in (1, 2, 3, 4):
            key = f"{code.co_name}-{line}-{which}"
            work_once = partial(run_once, work, scope="s", key=key, operation="o", lease=60)
            if not Striking(code, line, which).during(work_once):
                break
            strikes += 1
            # At once: a query would make Django forget what it believes about a connection that was closed.
            run_once(note, scope="s", key=f"note-{key}", operation="o", lease=60)
            row = IdempotencyKey.objects.filter(key=key).first()
            if (
                row
                and row.status == "completed"
                and b"time is up" in bytes(row.body or b"")
                and (row.effects or Order.objects.filter(reference=key))
            ):
                hidden.append(key)
    assert hidden == []
    assert in_threads(1, lambda _: Order.objects.filter(reference="note").count()) == [strikes]
    assert strikes > 100


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("warm", [False, True])
def test_an_exception_before_any_line_of_an_atomic_run_loses_nothing(warm: bool, in_threads: Any) -> None:
    """Order and key are there together or not at all, and what comes next on the connection is committed."""
    store = store_for("default")
    of_attempt = [each for each in vars(atomic._Attempt).values() if isfunction(each)]
    of_store = [getattr(type(store), name) for name in ("claim", "complete", "has_ended", "is_broken")]
    of_run = (atomic.Atomic.run, atomic._run, claiming.claim_or_wait)
    lines = lines_of(*of_run, *of_attempt, *of_store, *AROUND[-5:])

    def place(key: str) -> None:
        run_once(lambda: Order.objects.create(reference=key).pk, scope="s", key=key, operation="o")

    for number, (code, line) in enumerate(lines):
        for early in range(20 if warm else 0):  # what is prepared takes another way
            place(f"early-{early}")
        Striking(code, line).during(partial(place, str(number)))
        place(f"note-{number}")

    def kept(_: int) -> tuple[set[str], set[str]]:
        return set(Order.objects.values_list("reference", flat=True)), set(
            IdempotencyKey.objects.values_list("key", flat=True)
        )

    ((orders, keys),) = in_threads(1, kept)
    assert orders == keys
    assert {key for key in keys if key.startswith("note")} == {f"note-{number}" for number in range(len(lines))}
    assert len(lines) > 100
