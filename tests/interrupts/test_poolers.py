"""Behind pgbouncer: pooling by session and by transaction work, pooling by statement is refused by pgbouncer itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_idempotency.models import IdempotencyKey
from tests.interrupts.retrying import knowing
from tests.pooler import PGBOUNCER, THREADS, duplicates_make_one_order, pgbouncer, send
from tests.servers import fake_gateway, gunicorn
from tests.shopapp.models import Order

pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]
PATHS = ("/plain", "/retry")


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
    """In transaction pooling with fewer connections than requests; there with parameters bound on the server, too.

    Two steps of one leased request may run on two connections: none leaves a state behind.
    """
    with (
        fake_gateway() as gateway,
        serving(mode, pool_size, SERVER_LEASE="60", **knowing(gateway, gateway), **environment) as url,
    ):
        duplicates_make_one_order(url, key, in_threads)
        for model in (Order, IdempotencyKey):
            model._default_manager.all().delete()
        duplicates_make_one_order(url, key, in_threads, "/retry")
        charges = gateway.get("/charges").json()["charges"]
    assert Counter(charge["reference"] for charge in charges) == {f"charge {key}": 1, f"mail {key}": 1}


def test_a_pool_that_has_no_connection_in_time_is_503(key: str) -> None:
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
            for path in PATHS:
                answer = send(url, key, path)
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), path
        assert [send(url, key, path).status_code for path in PATHS] == [201, 201]


def test_statement_pooling_runs_nothing(key: str) -> None:
    """It ends a connection that begins a transaction. No view in atomic mode runs, and no call of a leased view."""
    with fake_gateway() as gateway, serving("statement", 3, **knowing(gateway, gateway)) as url:
        assert [send(url, key, path).status_code for path in PATHS for _ in range(2)] == [500] * 4
        assert gateway.get("/charges").json()["charges"] == []
    assert not Order.objects.exists()
