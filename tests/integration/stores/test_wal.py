"""How much a keyed request writes to PostgreSQL's write-ahead log.

Each figure is the least of 20 requests. A checkpoint, a full page, a new page of an index or a sequence, and what other
sessions write, can only add to a figure. So the least is the same each time.
"""

from __future__ import annotations

import pytest

from tests.functions import WAYS, going, look_now, request_like
from tests.shopapp.models import Order
from tests.sql import ask

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
KEYS = [f"{number:02}" for number in range(20)]
SUBTRANSACTION = 8
"""Bytes in the COMMIT: the completion by a function runs behind a savepoint, which has a transaction id of its own."""


def written(way: str) -> list[int]:
    """The bytes that a request under each key writes: a first request, or a replay."""
    with going(way):
        look_now()
        return [_written_under(f"{way[0]}{key}") for key in KEYS]


def _written_under(key: str) -> int:
    (before,) = ask("SELECT pg_current_wal_insert_lsn()")
    request_like(Order.objects.create, key=key)
    return int(ask(f"SELECT pg_current_wal_insert_lsn() - '{before}'::pg_lsn")[0])


def test_a_first_request_writes_the_same_by_functions_and_by_statements() -> None:
    """But for the savepoint. The stored body has 768 bytes, the rest is row, indexes and the order."""
    by_functions, by_statements = (min(written(way)) for way in WAYS)
    assert by_functions <= by_statements + SUBTRANSACTION
    assert 768 < by_functions < 2048


@pytest.mark.parametrize("way", WAYS)
def test_a_replay_writes_nothing(way: str) -> None:
    """No row, no lock of a row, and no number of the sequence."""
    written(way)
    assert min(written(way)) == 0
