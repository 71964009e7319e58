"""SQLite, MariaDB and MySQL: how many messages a request sends. PostgreSQL's are in test_round_trips.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from tests.claims import a_claim
from tests.contracts.races import attempt, isolation
from tests.http import post_empty
from tests.integration import leased_urls, view_urls
from tests.shopapp.models import Order
from tests.sql import ask

__all__ = ["isolation"]  # a fixture
Post = Callable[..., Any]
pytestmark = [
    pytest.mark.only_on("sqlite", "mysql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.integration.stores.test_budgets"),
]
urlpatterns = [*view_urls.urlpatterns, *leased_urls.urlpatterns]
QUESTIONS = "SHOW SESSION STATUS LIKE 'Questions'"
ORDER = {"sqlite": 3, "MariaDB": 4, "MySQL": 4}
"""The bare view: its INSERT, the begin and the COMMIT. Django begins with SET autocommit=0, and ends with =1."""
CLAIM_AND_RESULT = {"sqlite": 5, "MariaDB": 6, "MySQL": 6}
"""Two more than the bare view."""
CLAIM_AND_READING = {"sqlite": 4, "MariaDB": 5, "MySQL": 5}
"""One more than the bare view."""


def database() -> str:
    if connection.vendor == "sqlite":
        return "sqlite"
    return "MariaDB" if connection.mysql_is_mariadb else "MySQL"


def sent(work: Callable[[], Any]) -> int:
    """How many messages this thread's connection sends meanwhile, with those of Django itself."""
    connection.ensure_connection()
    return (_sent_to_sqlite if connection.vendor == "sqlite" else _sent_to_a_server)(work)


def _sent_to_sqlite(work: Callable[[], Any]) -> int:
    statements: list[str] = []
    raw: Any = connection.connection
    raw.set_trace_callback(statements.append)
    try:
        work()
    finally:
        raw.set_trace_callback(None)
    return len(statements)


def _sent_to_a_server(work: Callable[[], Any]) -> int:
    """The server counts the question itself, too."""
    before = int(ask(QUESTIONS)[1])
    work()
    return int(ask(QUESTIONS)[1]) - before - 1


def make_an_order() -> None:
    with transaction.atomic():
        Order.objects.create()


class TestAtomicMode:
    def test_the_bare_view(self) -> None:
        """What the others are compared with."""
        assert sent(make_an_order) == ORDER[database()]

    def test_a_first_request_sends_the_claim_and_the_result(self, post: Post) -> None:
        """Beside what the bare view sends."""
        assert sent(lambda: post("/create")) == CLAIM_AND_RESULT[database()]

    def test_a_duplicate_sends_the_claim_and_the_reading(self, post: Post) -> None:
        """A replay and a mismatch alike."""
        post("/create")
        assert sent(lambda: post("/create")) == CLAIM_AND_READING[database()]
        assert sent(lambda: post("/create", {"another": "body"})) == CLAIM_AND_READING[database()]

    @pytest.mark.only_on("mysql")  # SQLite has one writer at a time: no second claim begins
    def test_a_conflict_sends_no_more_than_a_replay(self, in_threads: Any) -> None:
        """MariaDB's claim tells by itself. MySQL looks at what is committed."""
        store = store_for("default")
        with transaction.atomic():
            assert isinstance(store.claim(a_claim()), Claimed)
            (found,) = in_threads(1, lambda _: sent(lambda: attempt(store)))
        assert found == {"MariaDB": 4, "MySQL": 5}[database()]

    @pytest.mark.only_on("mysql")
    @pytest.mark.parametrize("isolation", ["repeatable read", None], indirect=True)
    @pytest.mark.usefixtures("isolation")
    def test_repeatable_read_costs_a_statement(self) -> None:
        """A look before the INSERT: inside of the INSERT it would lock the gap of the key.

        None: the level is the server's own, which is the same.
        """
        assert sent(lambda: attempt(store_for("default"))) == 6


class TestLeasedMode:
    def test_a_call_and_a_write(self, key: str) -> None:
        """A claim, two steps and the result, each in a transaction of its own."""
        assert sent(lambda: post_empty(key)) == {"sqlite": 21, "MariaDB": 26, "MySQL": 26}[database()]
