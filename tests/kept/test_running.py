"""Atomic mode at work, as PostgreSQL's locks show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_idempotency import run_once
from django_idempotency.maintenance import running_transactions
from django_idempotency.models import IdempotencyKey
from tests.acceptance.pages import ROOT
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order
from tests.sql import ask

pytestmark = pytest.mark.django_db(databases=["default", "other"], transaction=True)
postgresql = pytest.mark.only_on("postgresql")


def once(work: Callable[..., Any], key: str = "k", **options: Any) -> Any:
    return run_once(work, scope="s", key=key, operation="o", **options).value


def held() -> list[int]:
    """How many keys each transaction holds, the oldest first."""
    found = running_transactions()
    assert found is not None
    return [running.keys for running in found]


@postgresql
def test_a_transaction_that_runs_a_view_is_listed() -> None:
    """With the process to terminate, and its age; not in another database of the server."""

    def work() -> Any:
        found = running_transactions()
        assert running_transactions(using="other") == []
        pid, name = ask("SELECT pg_backend_pid(), current_setting('application_name')")
        return [((r.pid, r.application_name) == (pid, name), r.keys, r.state, 0 <= r.seconds < 60) for r in found]

    assert once(work) == [[True, 1, "active", True]]
    assert held() == []


@postgresql
def test_a_transaction_of_several_keys_is_listed_once() -> None:
    """A job that commits its items together. A replay in it holds nothing."""
    once(lambda: 1, "replayed")
    with transaction.atomic():
        once(lambda: 2, "replayed")
        assert held() == []
        once(lambda: 1, "a")
        once(lambda: 1, "b")
        assert held() == [2]


@postgresql
@pytest.mark.parametrize("lock", ["pg_advisory_xact_lock(1)", "pg_advisory_xact_lock(1, 2)"])
def test_a_lock_of_the_application_is_no_key(lock: str) -> None:
    """Alone it does not count. Where the key table is written as well, a number of 64 bits cannot be told from ours."""
    with transaction.atomic():
        ask(f"SELECT count({lock})")
        Order.objects.create()
        assert held() == []
        IdempotencyKey.objects.filter(key="none").update(operation="o")
        assert held() == ([] if "," in lock else [1])


@postgresql
def test_a_key_under_a_lease_is_not_listed() -> None:
    """Its claim is committed: `in_flight` finds it."""
    assert once(lambda operation: held(), lease=60) == []


@pytest.mark.only_on("sqlite", "mysql")
def test_other_databases_do_not_tell() -> None:
    """None is not the same as no transaction."""
    assert once(running_transactions) is None


@pytest.mark.only_on("mysql")
def test_a_transaction_that_hangs_is_found_and_ended_by_hand(in_threads: Callable[..., Any]) -> None:
    """On MySQL and MariaDB, by the query and the KILL of docs/hangs.md. The next retry runs."""
    page = (ROOT / "docs/hangs.md").read_text()
    (query,) = re.findall(r"    (SELECT trx_mysql_thread_id.*?);\n", page, re.DOTALL)
    assert "`KILL` followed by the thread's id" in " ".join(page.split())
    started, killed, threads = Event(), Event(), []

    def is_listed() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return threads[0] in [row[0] for row in cursor.fetchall()]

    def hangs() -> None:
        Order.objects.create()
        threads.extend(ask("SELECT connection_id()"))
        started.set()
        assert killed.wait(DEADLINE), "its connection was never killed"
        Order.objects.create()

    def run(number: int) -> None:
        if number == 0:
            with pytest.raises(OperationalError):
                once(hangs)
            return
        try:
            assert started.wait(DEADLINE), "the work never began"
            eventually("the transaction to be listed", is_listed, pause=0.2)  # the list may be a moment old
            with connection.cursor() as cursor:
                cursor.execute(f"KILL {threads[0]}")
        finally:
            killed.set()  # an error here is not hidden by the other thread's wait

    in_threads(2, run)
    eventually("the killed transaction to be rolled back", lambda: not is_listed(), pause=0.2)
    assert not Order.objects.exists()
    assert once(lambda: 2) == 2
