"""Atomic mode with real threads: who wins, who waits, who is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, DataError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client

from django_idempotency import idempotent
from django_idempotency.engine.execution import claiming
from django_idempotency.engine.stores import store_for
from tests.at_once import CALLERS
from tests.heard import heard
from tests.shopapp.models import Order
from tests.views import creates, paths

Post = Callable[..., Any]
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.kept.threads.test_atomic")]
STARTED, GO = Event(), Event()


def stops(request: HttpRequest, order: Order) -> HttpResponse:
    """After the write, until the test says go on."""
    STARTED.set()
    assert GO.wait(30), "the test never let the view go on"
    return JsonResponse({"id": order.pk}, status=201)


def held(wait: float) -> Any:
    """One operation under three paths, which differ in their patience only."""
    return idempotent(wait=wait, operation="held", fingerprint=None)(creates(then=stops))


urlpatterns = paths(
    create=idempotent(creates()),
    read=lambda request: JsonResponse({"orders": Order.objects.count()}),
    held=held(0),
    held_waiting=held(30),
    held_impatient=held(0.05),
)


@pytest.fixture(autouse=True)
def _fresh_events() -> None:
    STARTED.clear()
    GO.clear()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each pause of a duplicate whether it has a transaction open. The first pause lets the winner go on."""
    open_: list[bool] = []

    def sleep(seconds: float) -> None:
        open_.append(connection.in_atomic_block or not connection.get_autocommit())
        GO.set()
        time.sleep(seconds)

    monkeypatch.setattr(claiming, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return open_


@pytest.mark.only_on("postgresql", "mysql")
class TestWhileItRuns:
    def test_duplicates_are_told_at_once_and_others_are_not_held_up(self, post: Post, in_threads: Threads) -> None:
        """Conflict without waiting; another caller, another key and a read go on."""

        def first(number: int) -> Any:
            return post("/held", client=Client())

        def others(number: int) -> list[int]:
            assert STARTED.wait(30), "the first never got to its pause"
            statuses = [post("/held", client=Client()).status_code for _ in range(5)]
            statuses.append(post("/create", client=Client(), headers={"X-Api-Key": "b"}).status_code)
            statuses.append(post("/create", key="another", client=Client()).status_code)
            statuses.append(Client().get("/read").json()["orders"])
            GO.set()
            return statuses

        one, two = in_threads(2, lambda number: (first, others)[number](number))
        assert one.status_code == 201
        assert two == [409, 409, 409, 409, 409, 201, 201, 2]
        assert post("/held").headers["Idempotency-Replayed"] == "true"

    def test_a_duplicate_can_wait_for_the_result(self, post: Post, in_threads: Threads, pauses: list[bool]) -> None:
        """wait= gets the winner's answer, and a duplicate that waits has no transaction open."""

        def send(number: int) -> Any:
            if number == 0:
                return post("/held", client=Client())
            assert STARTED.wait(30), "the first never got to its pause"
            return post("/held_waiting", client=Client())

        answers = in_threads(5, send)
        assert [a.status_code for a in answers] == [201] * 5
        assert len({a.content for a in answers}) == 1
        assert Order.objects.count() == 1
        assert set(pauses) == {False}

    @CALLERS
    def test_inside_a_transaction_of_the_caller_it_does_not_wait(
        self, post: Post, in_threads: Threads, caller: Any, pauses: list[bool]
    ) -> None:
        """A pause would hold the caller's locks and snapshot: the conflict is told at once."""

        def send(number: int) -> Any:
            if number == 0:
                return post("/held", client=Client()).status_code
            assert STARTED.wait(30), "the first never got to its pause"
            with caller():
                status = post("/held_waiting", client=Client()).status_code
            GO.set()
            return status

        assert in_threads(2, send) == [201, 409]
        assert pauses == []


@pytest.mark.only_on("postgresql")
class TestClaimsThatFail:
    """The claim meets a deadlock or a serialization failure: nothing has run yet."""

    @pytest.fixture(params=["40P01", "40001"])
    def failing(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Any]]:
        """Let the next claims fail, this often. Gives the list of all claims."""
        claim, claims = store_for("default").claim, list[Any]()

        def fail(times: int) -> list[Any]:
            def claiming(claim_request: Any, at_hand: Any = None) -> Any:
                claims.append(claim_request)
                if len(claims) <= times:
                    with connection.cursor() as cursor:
                        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION SQLSTATE '{request.param}'; END $$")
                return claim(claim_request, at_hand)

            monkeypatch.setattr(store_for("default"), "claim", claiming)
            return claims

        return fail

    def test_the_claim_is_repeated_in_a_fresh_transaction(self, post: Post, failing: Any) -> None:
        """Once."""
        claims = failing(1)
        assert (post("/create").status_code, len(claims), Order.objects.count()) == (201, 2, 1)

    def test_a_claim_that_keeps_failing_is_a_conflict(self, post: Post, failing: Any) -> None:
        """After one repetition. With `wait` it is asked again until `wait` is over."""
        claims = failing(1000)
        assert (post("/create").status_code, len(claims)) == (409, 2)
        assert (post("/held_impatient").status_code, len(claims) > 3) == (409, True)

    @pytest.mark.parametrize("failing", ["22012"], indirect=True)
    def test_any_other_error_is_told_and_raised(self, post: Post, failing: Any) -> None:
        """At once, and nothing is told as released."""
        claims = failing(1)
        with heard() as told, pytest.raises(DataError):
            post("/create")
        assert [(event["event"], event["using"], event["reason"]) for event in told] == [
            ("error", "default", "django.db.utils.DataError")
        ]
        assert (told[0]["identity"].operation, len(claims)) == ("POST create", 1)

    @CALLERS
    def test_inside_a_transaction_of_the_caller_it_propagates(self, post: Post, failing: Any, caller: Any) -> None:
        """Only the caller can begin the transaction again."""
        claims = failing(1000)
        with pytest.raises(DatabaseError), caller():
            post("/create")
        assert len(claims) == 1
