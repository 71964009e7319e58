"""BEGIN and COMMIT travel with our statements: how many round trips that leaves, and that nobody can tell otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test.utils import CaptureQueriesContext
from django.urls import path

from django_idempotency import OperationInProgress, PayloadMismatch, idempotent, run_once
from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.stores import messages, store_for
from django_idempotency.exceptions import ClaimLost
from django_idempotency.models import IdempotencyKey
from tests import view_urls
from tests.claims import SNAPSHOT, a_claim, granted
from tests.leases import Broken, as_if_killed
from tests.shopapp.models import Order
from tests.tap import Tap, tapped, verbs, watched
from tests.ways import WAYS, going, request_like, sql, warm_up

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


@contextmanager
def dividing(called: str) -> Iterator[None]:
    """A deferred trigger of the project does this at each COMMIT of an order."""
    sql(
        f"CREATE FUNCTION divides() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM {called}; RETURN NEW; END $$",
        f"CREATE CONSTRAINT TRIGGER divides AFTER INSERT ON {Order._meta.db_table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION divides()",
    )
    try:
        yield
    finally:
        sql("DROP FUNCTION divides CASCADE")


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


def pay(operation: Any) -> int:
    """One call and one write."""
    operation.call("charge", lambda: 1)
    return int(operation.write("order", Order.objects.create).pk)


def once(key: str, work: Any = pay, **options: Any) -> Any:
    return run_once(work, scope="s", key=key, operation="pay", **{"lease": 60, **options})


ALONE = ["BEGIN", "WITH", "COMMIT"]
"""A change of the journal, text in each way: its statement with BEGIN and COMMIT."""
WRITES = [["BEGIN", "WITH"], ["INSERT"], ["WITH", "COMMIT"]]


class TestLeased:
    """Each change of the journal is one message."""

    def test_a_call_and_a_write_take_seven(self, tap: Tap, way: str) -> None:
        """The claim, the call's start and its result, the three of the write, and the completion."""
        once("k")
        assert verbs(tap.take()) == [[*OPENED[way], "COMMIT"], ALONE, ALONE, *WRITES, ALONE]

    @pytest.mark.parametrize("prepared", [True, False])
    def test_the_first_claim_of_a_connection_is_committed_by_itself(self, settings: Any, prepared: bool) -> None:
        """A pooler that allows no transactions refuses it, before any call. A replay is judged during the COMMIT."""
        settings.IDEMPOTENCY = {"PREPARED_STATEMENTS": prepared}
        for rest in ([ALONE, ALONE, *WRITES, ALONE], []):
            with tapped() as tap:
                assert once("k").replayed is (not rest)
                assert verbs(tap.take()) == [["BEGIN", "WITH"], ["COMMIT"], *rest]

    def test_a_duplicate_takes_one(self, tap: Tap, way: str) -> None:
        """A replay, a mismatch, and a conflict with a worker that holds the lease."""

        def meets_itself(operation: Any) -> None:
            tap.take()
            with pytest.raises(OperationInProgress):
                once("c", meets_itself)
            assert verbs(tap.take()) == [[*OPENED[way], "COMMIT"]]

        once("k", payload=1)
        once("c", meets_itself)
        tap.take()
        assert once("k", payload=1).replayed
        assert verbs(tap.take()) == [[*OPENED[way], "COMMIT"]]
        with pytest.raises(PayloadMismatch):
            once("k", payload=2)
        assert verbs(tap.take()) == [[*OPENED[way], "COMMIT"]]

    def test_a_conflict_with_another_claim_takes_two(self, tap: Tap, way: str) -> None:
        """Whether the lock is still held is asked once more."""
        once("k")
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [IdempotencyKey.objects.get().scope_hash])
        IdempotencyKey.objects.all().delete()
        tap.take()
        try:
            with pytest.raises(OperationInProgress):
                once("k")
        finally:
            other.close()
        assert verbs(tap.take()) == [[*OPENED[way], "COMMIT"], ["SELECT"]]

    @pytest.mark.parametrize("abandoned", [False, True], ids=["failed", "abandoned"])
    def test_the_next_attempt_claims_the_long_way(self, tap: Tap, way: str, abandoned: bool) -> None:
        """Its steps are read, and the call isn't made again: twelve."""

        def breaks(operation: Any) -> None:
            operation.call("charge", lambda: 1)
            raise Broken

        with pytest.raises(Broken):
            once("k", breaks)
        if abandoned:
            as_if_killed()
        tap.take()
        once("k")
        sent = verbs(tap.take())
        claimed = [["BEGIN"], ["WITH"], ["SELECT"], ["SELECT"], ["UPDATE"], ["COMMIT"], ["SELECT"]]
        assert sent == [[*OPENED[way], "COMMIT"], *claimed, *WRITES, ALONE]

    def test_a_key_that_may_be_too_old_is_committed_when_that_is_known(self, tap: Tap, way: str) -> None:
        with transaction.atomic():
            store_for("default").claim(a_claim(lease=60.0, late=lambda now: False), last=True)
        assert verbs(tap.take()) == [OPENED[way], ["COMMIT"]]

    def test_by_djangos_cursor_they_are_as_many_as_on_other_databases(self) -> None:
        """Each statement by itself, and BEGIN and COMMIT around each change."""
        with going("cursor"), tapped() as tap:
            once("k")
            messages = verbs(tap.take())
        assert [verb for [verb] in messages] == [
            *("BEGIN", "WITH", "COMMIT"),
            *("BEGIN", "UPDATE", "INSERT", "COMMIT"),
            *("BEGIN", "UPDATE", "UPDATE", "COMMIT"),
            *("BEGIN", "UPDATE", "INSERT", "INSERT", "UPDATE", "UPDATE", "COMMIT"),
            *("BEGIN", "UPDATE", "COMMIT"),
        ]

    def test_a_write_in_whose_commit_the_projects_trigger_divides_by_zero(self, tap: Tap) -> None:
        """That is the project's error: nobody has taken the key over."""
        with dividing("1 / NEW.amount"), pytest.raises(DatabaseError, match="division by zero"):
            once("k")
        assert (Order.objects.count(), IdempotencyKey.objects.get().status) == (0, "failed")
        assert once("k").replayed is False
        assert Order.objects.count() == 1

    def test_a_write_that_ends_in_the_schema_of_nobody_is_refused(self, tap: Tap) -> None:
        def strays(operation: Any) -> None:
            operation.write("order", lambda: sql("SET search_path TO pg_catalog"))

        with pytest.raises(DatabaseError, match="does not exist"):
            once("k", strays)
        assert IdempotencyKey.objects.get().status == "failed"

    @pytest.mark.parametrize("lost", ["DEALLOCATE ALL", "DISCARD PLANS; DEALLOCATE ALL"])
    def test_a_write_may_drop_all_prepared_statements(self, tap: Tap, lost: str) -> None:
        def deallocates(operation: Any) -> Any:
            return operation.write("order", lambda: sql(lost) or Order.objects.create().pk)

        assert once("k", deallocates).replayed is False
        assert once("k", deallocates).replayed is True
        assert Order.objects.count() == 1

    def test_a_large_result_is_stored(self, tap: Tap) -> None:
        """Of a call, in the same message; and of the work, whose body goes as binary, by itself."""
        large = "ä" * 100_000
        assert once("k", lambda operation: operation.call("charge", lambda: large)).value == large
        assert verbs(tap.take())[1:] == [ALONE, ALONE, ["BEGIN"], ["WITH"], ["COMMIT"]]
        assert once("k").value == large


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
        with dividing(called), pytest.raises(DatabaseError, match=error):
            request_like(Order.objects.create)
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
