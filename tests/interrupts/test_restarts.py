"""The server is restarted, directly and behind pgbouncer, and the statements that it had prepared are gone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import DatabaseError, close_old_connections, connection, connections
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory

from django_idempotency import Operation, get_operation, idempotent
from django_idempotency.models import IdempotencyKey
from tests.at_hand import SERVERS, restart
from tests.pooler import PGBOUNCER, PORT, pgbouncer, reaches_the_server
from tests.servers import eventually
from tests.shopapp.models import Order
from tests.sql import ask
from tests.unreachable import reached_by

pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not SERVERS, reason="DATABASE_URL names a server that is not ours to restart"),
]
PREPARED = 3
"""The claim, the completion and the release."""


WITH_POOLER = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
BETWEEN = [
    pytest.param("direct", {}, id="atomic"),
    pytest.param("direct", {"lease": 600}, id="leased"),
    pytest.param("checked", {}, id="checked"),
    pytest.param("pooled", {}, id="atomic, pooled", marks=WITH_POOLER),
    pytest.param("pooled", {"lease": 600}, id="leased, pooled", marks=WITH_POOLER),
]
on_both_routes = pytest.mark.parametrize("route", ["direct", pytest.param("pooled", marks=WITH_POOLER)], indirect=True)


@pytest.fixture
def route(request: pytest.FixtureRequest) -> Iterator[str]:
    """How this thread reaches the server: itself, with Django's health checks, or through a pool of one connection."""
    with ExitStack() as stack:
        changes: dict[str, Any] = {"CONN_HEALTH_CHECKS": request.param == "checked"}
        if request.param == "pooled":
            pooler = stack.enter_context(pgbouncer(1))
            changes.update(HOST=pooler["SERVER_HOST"], PORT=pooler["SERVER_PORT"])
        connections.close_all()
        stack.enter_context(reached_by(changes))
        yield str(request.param)
        connections.close_all()


def restarts() -> None:
    """The pooler has dropped its connection, too."""
    restart(signal.SIGINT)
    settings = connection.settings_dict
    if settings["PORT"] == str(PORT):
        eventually("the pooler to have another connection", lambda: reaches_the_server(settings["HOST"]))


def prepared() -> int:
    (count,) = ask("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'idempotency%'")
    return int(count)


def posting(view: Callable[[HttpRequest], int], **options: Any) -> Callable[[str], list[Any]]:
    """Post to this view; gives the status, and whether it is a replay."""

    def answer(request: HttpRequest) -> JsonResponse:
        return JsonResponse({"result": view(request)}, status=201)

    protected = idempotent(scope=lambda request: "s", **options)(answer)

    def post(key: str) -> list[Any]:
        close_old_connections()  # as Django does before and after each request
        try:
            answer = protected(RequestFactory().post("/", headers={"Idempotency-Key": key}))
            return [answer.status_code, answer.headers["Idempotency-Replayed"]]
        except DatabaseError:
            return [500, None]
        finally:
            close_old_connections()

    return post


def places(request: HttpRequest) -> int:
    return Order.objects.create(reference=request.headers["Idempotency-Key"]).pk


def writes(request: HttpRequest) -> int:
    operation: Operation = get_operation(request)  # type: ignore[assignment]
    order: int = operation.write("order", places, request)
    return order


def orders() -> list[str]:
    return sorted(Order.objects.values_list("reference", flat=True))


def assert_it_goes_on(post: Callable[[str], list[Any]], *, by_text: bool) -> None:
    """Each key has one order, and later requests are served: as text, or prepared anew by their own connection."""
    for key in ("later", "last"):
        assert [post(key), post(key)] == [[201, "false"], [201, "true"]]
    assert orders() == ["a", "b", "c", "last", "later"]
    assert set(IdempotencyKey.objects.values_list("status", flat=True)) == {"completed"}
    assert prepared() == (0 if by_text else PREPARED)


@pytest.mark.parametrize(("route", "options"), BETWEEN, indirect=["route"])
def test_between_two_requests(route: str, options: dict[str, Any]) -> None:
    """Behind a pooler, the claim is rolled back and sent as text. Without one, the next request gets 503, unless Django
    checks its connections.
    """
    post = posting(writes if options else places, **options)
    assert [post("a"), post("b"), prepared()] == [[201, "false"], [201, "false"], PREPARED]
    restarts()
    if route == "direct":
        assert post("c") == [503, "false"]
        assert orders() == ["a", "b"]
    assert [post("c"), post("c")] == [[201, "false"], [201, "true"]]
    assert_it_goes_on(post, by_text=route == "pooled")


@on_both_routes
def test_in_a_view(route: str) -> None:
    """The completion was prepared by the session that has claimed, so nothing of the view is kept."""
    runs: list[Any] = []

    def view(request: HttpRequest) -> int:
        runs.append(request)
        order = places(request)
        if len(runs) == 3:
            restarts()
        return order

    post = posting(view)
    assert [post("a"), post("b"), prepared()] == [[201, "false"], [201, "false"], PREPARED]
    assert post("c") == [500, None]
    assert (orders(), IdempotencyKey.objects.count()) == (["a", "b"], 2)
    assert [post("c"), post("c"), len(runs)] == [[201, "false"], [201, "true"], 4]
    assert_it_goes_on(post, by_text=False)


@on_both_routes
@pytest.mark.parametrize("step", ["call", "write"])
def test_in_a_step(route: str, step: str) -> None:
    """The result of a call is stored on another connection. A write is rolled back, and the retry repeats only that."""
    charges: list[str] = []

    def view(request: HttpRequest) -> int:
        operation: Operation = get_operation(request)  # type: ignore[assignment]
        now = (operation.key, operation.attempt) == ("c", 1)

        def charge() -> None:
            charges.append(operation.key)
            if now and step == "call":
                restarts()

        def place() -> int:
            order = places(request)
            if now and step == "write":
                restarts()
            return order

        operation.call("charge", charge)
        order: int = operation.write("order", place)
        return order

    post = posting(view, lease=600)
    assert [post("a"), post("b"), prepared()] == [[201, "false"], [201, "false"], PREPARED]
    if step == "write":
        assert post("c") == [500, None]
        assert (orders(), IdempotencyKey.objects.get(key="c").status) == (["a", "b"], "failed")
    assert [post("c"), post("c")] == [[201, "false"], [201, "true"]]
    assert_it_goes_on(post, by_text=route == "pooled" and step == "call")
    assert charges == ["a", "b", "c", "later", "last"]
