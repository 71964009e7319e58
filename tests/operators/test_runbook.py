"""The statements that docs/incidents.md prints for a table that is locked or grows."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, get_ident
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency import run_once
from tests.acceptance.pages import ROOT
from tests.admin_pages import make_key
from tests.servers import DEADLINE, eventually
from tests.sql import TABLE, ask, isolated

INCIDENTS = (ROOT / "docs/incidents.md").read_text()
PAGE = INCIDENTS.partition("## A table that grows")[2].partition("\n## ")[0]


@pytest.mark.django_db(transaction=True)
def test_the_space_of_deleted_keys_is_given_back() -> None:
    """Each server takes its statement, as it is written, beside living keys."""
    make_key(key="lives")
    rebuilt = {"postgresql": "REINDEX TABLE CONCURRENTLY", "mysql": "OPTIMIZE TABLE"}.get(connection.vendor)
    if rebuilt is None:
        pytest.skip(f"about a server, the database at hand is {connection.vendor}")
    (statement,) = re.findall(rf"`({rebuilt} \w+)`", PAGE)
    with connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.execute("SELECT count(*) FROM django_idempotency_idempotencykey")
        assert cursor.fetchone() == (1,)


@pytest.mark.django_db
def test_the_caller_of_a_flood_is_named_first() -> None:
    """By its scope, with the operation and the number of its keys."""
    make_key(key="another", scope="user:1", operation="POST orders/")
    for number in range(3):
        make_key(key=f"flood {number}", scope="user:2", operation="POST orders/")
    (statement,) = re.findall(r"^    (SELECT scope.*?);$", PAGE, re.DOTALL | re.MULTILINE)
    with connection.cursor() as cursor:
        cursor.execute(statement)
        assert list(cursor.fetchall()) == [("user:2", "POST orders/", 3), ("user:1", "POST orders/", 1)]


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_the_session_that_holds_the_key_table_is_named(in_threads: Any) -> None:
    """Not those that wait for it, although others wait behind them."""
    page = INCIDENTS.partition("## A locked key table")[2].partition("\n## ")[0]
    (statement,) = re.findall(r"^    (SELECT blocker.*?);$", page, re.DOTALL | re.MULTILINE)
    locked, done = Barrier(3, timeout=DEADLINE), Event()

    def hold() -> Any:
        with transaction.atomic():
            (pid,) = ask(f"SELECT pg_backend_pid() FROM (SELECT count(*) FROM {TABLE}) AS read_first")
            with connection.cursor() as cursor:
                cursor.execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
            locked.wait()
            assert done.wait(DEADLINE)
            return pid

    def claim() -> Any:
        locked.wait()
        return run_once(lambda: 1, scope="s", key=str(get_ident()), operation="o").value

    def look() -> Any:
        try:
            with connection.cursor() as cursor:

                def found() -> Any:
                    cursor.execute(statement)
                    rows = cursor.fetchall()
                    return rows if [row[4] for row in rows] == [2] else None

                return eventually("both claims to wait", found)
        finally:
            done.set()

    pid, *claims, ((named, *_),) = in_threads(4, lambda number: (hold, claim, claim, look)[number]())
    assert (named, claims) == (pid, [1, 1])


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_the_session_that_holds_vacuum_back_is_named() -> None:
    """The statements are those on the page."""
    opened, done = Event(), Event()

    def keep_a_snapshot() -> Any:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            (pid,) = ask(f"SELECT pg_backend_pid() FROM (SELECT count(*) FROM {TABLE}) AS seen")
            opened.set()
            assert done.wait(DEADLINE)
            return pid

    with ThreadPoolExecutor(1) as pool:
        snapshot = pool.submit(isolated(keep_a_snapshot))
        try:
            assert opened.wait(DEADLINE)
            found = {}
            with connection.cursor() as cursor:
                for statement in re.findall(
                    r"^    (SELECT (?:pid|slot_name|gid).*?);$", PAGE, re.DOTALL | re.MULTILINE
                ):
                    cursor.execute(statement)
                    found[statement.split()[1]] = [row[0] for row in cursor.fetchall()]
        finally:
            done.set()
        assert snapshot.result(DEADLINE) in found["pid,"]
    assert len(found) == 3
