"""How much a keyed request writes to PostgreSQL's write-ahead log.

Each figure is the least of 20 requests. A checkpoint, a full page, a new page of an index or a sequence, and what other
sessions write, can only add to a figure. So the least is the same each time.
"""

from __future__ import annotations

import pytest

from tests.shopapp.models import Order
from tests.sql import ask
from tests.ways import WAYS, going, request_like, warm_up

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
KEYS = [f"{number:02}" for number in range(20)]


def written(way: str) -> list[int]:
    """The bytes that a request under each key writes: a first request, or a replay."""
    with going(way):
        warm_up()
        return [_written_under(f"{way[0]}{key}") for key in KEYS]


def _written_under(key: str) -> int:
    (before,) = ask("SELECT pg_current_wal_insert_lsn()")
    request_like(Order.objects.create, key=key)
    return int(ask(f"SELECT pg_current_wal_insert_lsn() - '{before}'::pg_lsn")[0])


def test_a_first_request_writes_the_same_prepared_and_as_text() -> None:
    """The stored body has 768 bytes, the rest is row, indexes and the order."""
    prepared, text = (min(written(way)) for way in WAYS)
    assert prepared == text
    assert 768 < prepared < 2048


@pytest.mark.parametrize("way", WAYS)
def test_a_replay_writes_nothing(way: str) -> None:
    """No row, no lock of a row, and no number of the sequence."""
    written(way)
    assert min(written(way)) == 0
