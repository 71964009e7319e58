"""One cursor serves the messages of many requests, except where each cursor has to be opened anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test.utils import CaptureQueriesContext

from django_idempotency.engine.stores.round_trips import KEPT
from tests.functions import WAYS, going
from tests.shopapp.models import Order
from tests.sql import TABLE, instead
from tests.tap import tapped

Post = Callable[..., Any]
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.integration.view_urls"),
]
LARGE = {"large": "x" * 70_000}
PER_REQUEST = 1
"""Of the view itself: its INSERT."""


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with going(request.param):
        yield request.param


@contextmanager
def counted() -> Iterator[list[int]]:
    """One entry for each cursor that the driver opens on the connection of this moment."""
    connection.ensure_connection()
    raw: Any = connection.connection
    usual, opened = raw.cursor_factory, []

    class Counted(usual):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            opened.append(1)
            super().__init__(*args, **kwargs)

    raw.cursor_factory = Counted
    try:
        yield opened
    finally:
        raw.cursor_factory = usual


def test_a_request_opens_no_cursor_but_those_of_its_view(post: Post, way: str) -> None:
    """To open one costs as much as to send a statement. The statements take one for a request: they may be large."""
    of_ours = {"functions": 0, "statements": 1}[way]
    post("/create", key="0")
    with counted() as opened:
        for number in range(1, 4):
            assert post("/create", key=str(number)).status_code == 201
        assert len(opened) == 3 * (PER_REQUEST + of_ours)
        assert post("/create", key="1").headers["Idempotency-Replayed"] == "true"
        assert len(opened) == 3 * (PER_REQUEST + of_ours) + of_ours


def test_after_a_reconnect_it_is_a_cursor_of_the_new_connection(post: Post, way: str) -> None:
    post("/create", key="0")
    connection.close()
    assert post("/create", key="1").status_code == 201
    kept = getattr(connection, KEPT, None)
    assert (kept is None) == (way == "statements")
    assert kept is None or kept.cursor.connection is connection.connection
    assert post("/create", key="0").headers["Idempotency-Replayed"] == "true"


def test_the_query_log_is_complete_after_requests_without_it(post: Post) -> None:
    post("/create", key="0")
    with CaptureQueriesContext(connection) as captured:
        post("/create", key="1")
    assert [query["sql"].split()[0] for query in captured] == ["BEGIN", "INSERT", "INSERT", "UPDATE", "COMMIT"]


def test_a_cursor_of_the_query_log_is_not_kept(post: Post) -> None:
    connection.close()
    with CaptureQueriesContext(connection):
        post("/create", key="0")
    post("/create", key="1")
    assert not connection.queries_log  # each request empties it


def test_a_tool_with_a_cursor_method_of_its_own_sees_each_cursor(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """As debug-toolbar puts one in, long after the first request."""
    post("/create", key="0")
    opened, usual = [], connection.cursor

    def cursor() -> Any:
        opened.append(1)
        return usual()

    monkeypatch.setitem(connections["default"].__dict__, "cursor", cursor)
    post("/create", key="1")
    assert len(opened) == 2 + PER_REQUEST


@pytest.mark.parametrize("name", ["_cursor", "_prepare_cursor", "create_cursor"])
def test_a_backend_that_opens_cursors_in_its_own_way_opens_each(
    post: Post, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As packages for tenants do, to set the search_path first."""
    post("/create", key="0")
    opened = []
    usual = getattr(type(connections["default"]), name)

    def own(self: BaseDatabaseWrapper, *args: Any, **kwargs: Any) -> Any:
        opened.append(1)
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(type(connections["default"]), name, own)
    post("/create", key="1")
    assert len(opened) == 2 + PER_REQUEST


def test_a_large_response_does_not_stay_in_memory(post: Post) -> None:
    """A cursor holds its last statement and its last rows."""
    for replayed in ("false", "true"):
        post("/create", key="small")  # keeps a cursor
        assert post("/mirror", LARGE).headers["Idempotency-Replayed"] == replayed
        assert not hasattr(connection, KEPT)


def test_a_large_response_that_could_not_be_stored_does_not_stay_in_memory(post: Post) -> None:
    """Nor does it after an error of the statement that stores it."""
    post("/create", key="small")
    only_small = f"ALTER TABLE {TABLE} ADD CONSTRAINT small CHECK (octet_length(body) < 70000)"
    with instead(only_small, f"ALTER TABLE {TABLE} DROP CONSTRAINT small"):
        with pytest.raises(IntegrityError):
            post("/mirror", LARGE)
        assert not hasattr(connection, KEPT)


def test_a_pool_gives_another_connection(post: Post) -> None:
    pytest.importorskip("psycopg_pool")
    with tapped(CONN_MAX_AGE=0, OPTIONS={"pool": {"min_size": 2, "max_size": 2}}):
        for number in range(4):  # the pool gives its two connections in turn
            assert post("/create", key=str(number)).status_code == 201
            connection.close()
        assert post("/create", key="2").headers["Idempotency-Replayed"] == "true"
    assert Order.objects.count() == 4
