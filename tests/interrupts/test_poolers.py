"""Behind pgbouncer: pooling by session and by transaction work, pooling by statement is refused by pgbouncer itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from tests.interrupts.retrying import knowing
from tests.pooler import PGBOUNCER, THREADS, duplicates_make_one_order, pgbouncer, send
from tests.servers import fake_gateway, gunicorn
from tests.shopapp.models import Order

pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]


@contextmanager
def serving(mode: str, pool_size: int, **environment: str) -> Iterator[str]:
    with (
        pgbouncer(pool_size, mode) as pooler,
        gunicorn("--threads", str(THREADS), **pooler, **environment) as url,
    ):
        yield url


@pytest.mark.parametrize(
    ("mode", "pool_size", "environment"),
    [
        ("session", THREADS + 2, {}),
        ("transaction", 3, {}),
        ("transaction", 3, {"SERVER_SIDE_BINDING": "yes"}),
    ],
    ids=["session", "transaction", "transaction-bound-on-the-server"],
)
def test_duplicates_make_one_order(
    in_threads: Callable[..., list[Any]], key: str, mode: str, pool_size: int, environment: dict[str, str]
) -> None:
    """In transaction pooling with fewer connections than requests; there with parameters bound on the server, too."""
    with serving(mode, pool_size, **environment) as url:
        duplicates_make_one_order(url, key, in_threads)


@pytest.mark.parametrize("environment", [{}, {"SERVER_SIDE_BINDING": "yes"}], ids=["", "bound-on-the-server"])
def test_leased_duplicates_make_one_order(
    in_threads: Callable[..., list[Any]], key: str, environment: dict[str, str]
) -> None:
    """In transaction pooling, two steps of one request may run on two connections: none leaves a state behind."""
    with (
        fake_gateway() as gateway,
        serving("transaction", 3, SERVER_LEASE="60", **knowing(gateway, gateway), **environment) as url,
    ):
        duplicates_make_one_order(url, key, in_threads, "/retry")
        charges = gateway.get("/charges").json()["charges"]
    assert Counter(charge["reference"] for charge in charges) == {f"charge {key}": 1, f"mail {key}": 1}


@pytest.mark.parametrize("path", ["/plain", "/retry"])
def test_a_pool_that_has_no_connection_in_time_is_503(key: str, path: str) -> None:
    """PgBouncer's query_wait_timeout: nothing has run, and the retry does it."""
    with (
        fake_gateway() as gateway,
        pgbouncer(1, query_wait_timeout=1) as pooler,
        gunicorn(**pooler, **knowing(gateway, gateway)) as url,
    ):
        with psycopg.connect(
            host=pooler["SERVER_HOST"],
            port=pooler["SERVER_PORT"],
            dbname=connection.settings_dict["NAME"],
            user="anyone",
        ) as held:
            held.execute("SELECT 1")
            answer = send(url, key, path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert send(url, key, path).status_code == 201


@pytest.mark.parametrize("path", ["/plain", "/retry"])
def test_statement_pooling_runs_nothing(key: str, path: str) -> None:
    """It ends a connection that begins a transaction. No view in atomic mode runs, and no call of a leased view."""
    with fake_gateway() as gateway, serving("statement", 3, **knowing(gateway, gateway)) as url:
        assert [send(url, key, path).status_code for _ in range(2)] == [500, 500]
        assert gateway.get("/charges").json()["charges"] == []
    assert not Order.objects.exists()
