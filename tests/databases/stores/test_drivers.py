"""The store decides alike, whichever way the driver sends: psycopg 3 with its options, and psycopg2."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from django_idempotency import TransactionBroken, run_once
from django_idempotency.models import IdempotencyKey
from tests.contracts import test_states
from tests.tap import tapped

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
on_psycopg3 = pytest.mark.skipif(not is_psycopg3, reason="about options of psycopg 3, the driver at hand is psycopg2")
on_psycopg2 = pytest.mark.skipif(is_psycopg3, reason="NOT RUN: psycopg2. psycopg 3 is at hand: tox run -e psycopg2")
BINDING: dict[str, Any] = {"OPTIONS": {"server_side_binding": True}}
POOL: dict[str, Any] = {"OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}, "CONN_MAX_AGE": 0}
"""One connection: a pool makes another one when it likes, and that sends statements of its own."""
DRIVERS = [
    pytest.param(BINDING, marks=on_psycopg3, id="server-side binding"),
    pytest.param(POOL, marks=on_psycopg3, id="pool"),
    pytest.param({}, marks=on_psycopg2, id="psycopg2"),
]


@pytest.mark.parametrize("changes", DRIVERS)
def test_it_decides_as_the_contract_says(changes: Any) -> None:
    """Each state of a stored key. With psycopg2 and with binding on the server, each statement goes alone."""
    with tapped(**changes):
        for state in test_states.STATES:
            IdempotencyKey.objects.all().delete()
            test_states.TestStatesContract().test_a_claim_that_meets_the_state(state)


@on_psycopg3
@pytest.mark.parametrize("changes", [{}, POOL], ids=["direct", "pool"])
def test_a_closed_connection_is_named(changes: Any) -> None:
    """A pool has taken it back by then. The next request has another one, and waits until the server has noticed."""
    with tapped(**changes):
        with pytest.raises(TransactionBroken, match="closed its database connection"):
            run_once(lambda: connection.close(), scope="s", key="k", operation="o")
        assert run_once(lambda: 1, scope="s", key="k", operation="o", wait=30).value == 1
