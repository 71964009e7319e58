"""BEGIN and COMMIT travel with our statements: how many round trips that leaves, and that nobody can tell otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test.utils import CaptureQueriesContext
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.stores import messages, store_for
from django_idempotency.exceptions import ClaimLost
from django_idempotency.models import IdempotencyKey
from tests import view_urls
from tests.claims import SNAPSHOT, a_claim, granted
from tests.shopapp.models import Order
from tests.tap import Tap, tapped, verbs, watched
from tests.ways import WAYS, going, request_like, warm_up

Post = Callable[..., Any]
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.databases.stores.test_round_trips"),
]


@idempotent
def rolls_back(request: HttpRequest) -> HttpResponse:
    """Raw SQL that ends our transaction under Django's feet; what follows must not commit by itself."""
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")
    Order.objects.create()
    return HttpResponse("done", status=201)


@idempotent
def states(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        (isolation,) = cursor.fetchone()
    Order.objects.create()
    return JsonResponse({"autocommit": connection.connection.autocommit, "isolation": isolation}, status=201)


urlpatterns = [*view_urls.urlpatterns, path("rolls_back", rolls_back), path("states", states)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tap(way: str) -> Iterator[Tap]:
    with going(way), tapped() as tap:
        warm_up()
        tap.take()
        yield tap


OPENED = {"text": ["BEGIN", "WITH"], "prepared": ["BEGIN", "EXECUTE"]}
CLOSED = {"text": ["WITH", "COMMIT"], "prepared": ["EXECUTE", "COMMIT"]}
TOGETHER = {way: [OPENED[way], ["INSERT"], CLOSED[way]] for way in WAYS}
ANSWERED = {way: [OPENED[way], ["COMMIT"]] for way in WAYS}
APART = [["BEGIN"], ["WITH"], ["INSERT"], ["UPDATE"], ["COMMIT"]]


class TestHowMany:
    def test_a_first_request_takes_as_many_as_the_bare_view(self, tap: Tap, post: Post, way: str) -> None:
        """BEGIN, INSERT, COMMIT."""
        assert post("/create").status_code == 201
        assert verbs(tap.take()) == TOGETHER[way]
        with transaction.atomic():
            Order.objects.create()
        assert len(tap.take()) == 3

    def test_a_duplicate_takes_two(self, tap: Tap, post: Post, way: str) -> None:
        """A replay and a mismatch: the row is judged while the server commits."""
        post("/create")
        tap.take()
        assert post("/create").headers["Idempotency-Replayed"] == "true"
        assert verbs(tap.take()) == ANSWERED[way]
        assert post("/create", {"another": "body"}).status_code == 422
        assert verbs(tap.take()) == ANSWERED[way]

    def test_a_conflict_takes_two(self, tap: Tap, way: str) -> None:
        """Another transaction has the lock of the key."""
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [a_claim().identity.scope_hash])
        tap.take()
        try:
            with transaction.atomic():
                assert store_for("default").claim(a_claim()) == Conflicted()
        finally:
            other.close()
        assert verbs(tap.take()) == [OPENED[way], ["COMMIT", "SELECT"]]

    def test_a_lock_that_is_freed_between_the_two_is_no_conflict(
        self, tap: Tap, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other transaction has ended by then, so the key is claimed the long way."""
        other, begin, lock = connection.copy(), messages.begin, [a_claim().identity.scope_hash]

        def begins(*args: Any, **how: Any) -> Any:
            found = begin(*args, **how)
            cursor.execute("SELECT pg_advisory_unlock(%s)", lock)
            return found

        monkeypatch.setattr(messages, "begin", begins)
        try:
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock(%s)", lock)
                assert isinstance(request_like(), Claimed)
        finally:
            other.close()

    def test_an_expired_key_is_taken_over_in_a_transaction_of_its_own(self, tap: Tap, way: str) -> None:
        """The long way, after the short one has found it."""
        claimed = request_like()
        assert isinstance(claimed, Claimed)
        IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=2))
        tap.take()
        with transaction.atomic():
            assert store_for("default").claim(a_claim()) == granted(claimed.id, 2)
            assert connection.connection.info.transaction_status.name == "INTRANS"
        assert verbs(tap.take())[:3] == [OPENED[way], ["COMMIT"], ["BEGIN"]]

    def test_a_failed_key_without_effects_takes_another_payload_when_its_time_is_over(self, tap: Tap, way: str) -> None:
        """Only the long way knows the steps of the key, which decide whether a failed key expires."""
        claimed = request_like(lease=60.0)
        assert isinstance(claimed, Claimed)
        IdempotencyKey.objects.update(status="failed", expires_at=F("created_at") - timedelta(days=2))
        with transaction.atomic():
            assert store_for("default").claim(a_claim(fingerprint=b"2" * 32)) == granted(claimed.id, 2)


class TestNobodyCanTell:
    """What Django promises about a transaction holds, whichever way it was opened."""

    def test_the_driver_is_in_a_transaction_and_not_in_autocommit(self, tap: Tap, post: Post) -> None:
        assert post("/states").json() == {"autocommit": False, "isolation": "read committed"}
        assert (connection.get_autocommit(), connection.connection.autocommit) == (True, True)

    def test_nothing_commits_after_a_raw_rollback(self, tap: Tap, post: Post) -> None:
        """Its transaction is gone and the claim with it: what was written since must not stay."""
        with pytest.raises(ClaimLost):
            post("/rolls_back")
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)

    @pytest.mark.parametrize(
        ("called", "error"), [("1 / NEW.amount", "division by zero"), ("missing()", "function missing")]
    )
    def test_an_error_at_the_commit_is_the_projects_own(
        self, tap: Tap, way: str, caplog: pytest.LogCaptureFixture, called: str, error: str
    ) -> None:
        """Of a deferred trigger: nothing says that the view deleted a row, or that a function of ours is gone."""
        table, own = Order._meta.db_table, "divides"
        with connection.cursor() as cursor:
            cursor.execute(
                f"CREATE FUNCTION {own}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN PERFORM {called}; RETURN NEW; END $$"
            )
            cursor.execute(
                f"CREATE CONSTRAINT TRIGGER {own} AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
                f"FOR EACH ROW EXECUTE FUNCTION {own}()"
            )
        try:
            with pytest.raises(DatabaseError, match=error):
                request_like(Order.objects.create)
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP FUNCTION {own} CASCADE")
        assert CLOSED[way] in verbs(tap.take())
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
        assert caplog.records == []

    def test_a_row_that_the_view_has_deleted_stops_the_commit(self, tap: Tap, way: str) -> None:
        """The COMMIT stands behind the check in the same message."""
        with pytest.raises(ClaimLost):
            request_like(Order.objects.create, IdempotencyKey.objects.all().delete)
        assert verbs(tap.take())[-2:] == [CLOSED[way], ["ROLLBACK"]]
        assert not Order.objects.exists()

    def test_the_query_log_has_each_statement_by_itself(self, tap: Tap, post: Post) -> None:
        with CaptureQueriesContext(connection) as captured:
            post("/create")
        assert [query["sql"].split()[0] for query in captured] == [verb for [verb] in APART]
        assert verbs(tap.take()) == APART

    def test_execute_wrappers_see_each_statement_by_itself(self, tap: Tap, post: Post) -> None:
        """And the error of each, where it occurs."""
        with watched() as seen:
            post("/create")
        assert seen == ["WITH", "INSERT", "UPDATE"]
        assert verbs(tap.take()) == APART


class TestWhereItIsLeftAlone:
    def test_without_autocommit(self, tap: Tap, post: Post) -> None:
        """The project commits, not we."""
        transaction.set_autocommit(False)
        try:
            post("/create")
            assert "COMMIT" not in [verb for message in verbs(tap.take()) for verb in message]
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)

    def test_with_another_isolation(self, post: Post) -> None:
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        with tapped(OPTIONS={"isolation_level": IsolationLevel.SERIALIZABLE}) as tap:
            assert post("/states").json()["isolation"] == "serializable"
            sent = tap.take()
        assert sent[0] == "BEGIN ISOLATION LEVEL SERIALIZABLE"
        assert post("/states").headers["Idempotency-Replayed"] == "true"


class TestConnections:
    @pytest.mark.parametrize("when", ["before the claim", "before the result"])
    def test_a_broken_connection_loses_the_request_and_nothing_else(self, tap: Tap, when: str) -> None:
        store = store_for("default")
        if when == "before the claim":
            tap.cut()
        with pytest.raises(OperationalError, match="connection"):
            request_like(Order.objects.create, tap.cut)
        assert not connection.in_atomic_block
        connection.close()
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
        request_like()
        with transaction.atomic():
            assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT, resource=("order", "7"))

    def test_an_error_of_the_claim_leaves_the_connection_as_it_was(self, tap: Tap, way: str) -> None:
        """It is not sent again: only a prepared statement that is lost goes once more, by text."""
        with pytest.raises(DatabaseError), transaction.atomic():
            store_for("default").claim(a_claim(ttl=float("nan")))
        assert verbs(tap.take()) == [OPENED[way], ["ROLLBACK"]]
        assert (connection.in_atomic_block, connection.connection.autocommit) == (False, True)
        assert Order.objects.count() == 0
