"""Statements that a connection has prepared: when, what happens when they are lost, and whom they leave alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_idempotency import ClaimLost, IdempotencyConfigurationError, StoreBusy, idempotent, run_once
from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.stores import messages, store_for
from django_idempotency.engine.stores.postgresql import PostgreSQLStore
from django_idempotency.models import IdempotencyKey
from tests.claims import SNAPSHOT, a_claim
from tests.shopapp.models import Order
from tests.sql import TABLE, ask, instead
from tests.tap import Tap, tapped, verbs
from tests.ways import going, request_like, sql, warm_up

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
LARGE = replace(SNAPSHOT, body=bytes(range(256)) * 300)
REPLAYED = Completed(snapshot=SNAPSHOT, resource=("order", "7"))
BY_TEXT = [["BEGIN", "WITH"], ["WITH", "COMMIT"]]
PREPARES = ["BEGIN", *["PREPARE"] * 3, "EXECUTE"]
CALLED = [["BEGIN", "EXECUTE"], ["EXECUTE", "COMMIT"]]
APART = [["BEGIN"], ["WITH"], ["UPDATE"], ["COMMIT"]]


@pytest.fixture
def tap() -> Iterator[Tap]:
    """A connection that has prepared its statements."""
    with going("prepared"), tapped() as tap:
        warm_up()
        tap.take()
        yield tap


def name_of(kind: str) -> str:
    """The name under which a statement is prepared."""
    return store_for("default")._statements[kind].preparation.split()[1].decode()  # type: ignore[attr-defined, no-any-return]


def sent(tap: Tap, key: str) -> list[list[str]]:
    """What a first request sends."""
    tap.take()
    assert isinstance(request_like(key=key), Claimed)
    return verbs(tap.take())


class TestWhen:
    def test_a_connection_prepares_with_its_second_claim(self) -> None:
        """A connection that serves one request would not earn it."""
        with tapped() as tap:
            assert sent(tap, "a") == BY_TEXT
            assert sent(tap, "b") == [PREPARES, CALLED[1]]
            assert sent(tap, "c") == CALLED
            assert request_like(key="a") == REPLAYED
            assert verbs(tap.take()) == [CALLED[0], ["COMMIT"]]

    def test_with_a_threshold_of_the_projects_nothing_is_prepared(self) -> None:
        """psycopg would deallocate ours with its own, even in the middle of a request."""
        with tapped(OPTIONS={"prepare_threshold": 5}) as tap:
            assert [sent(tap, str(number)) for number in range(3)] == [BY_TEXT] * 3

    def test_a_plan_of_an_empty_table_reads_no_whole_table_later(self, tap: Tap) -> None:
        """And the view's own statements are planned as always."""
        sql(f"TRUNCATE {TABLE} CASCADE", f"ANALYZE {TABLE}")
        seen = []
        for number in range(12):  # the sixth call makes the lasting plan, and after the tenth nothing is switched
            request_like(lambda: seen.append(ask("SHOW enable_seqscan")[0]), key=str(number))
            request_like(key=str(number))
        assert set(seen) == {"on"}
        plans: dict[str, str] = {}
        for name, arguments in (("claim", 12), ("complete", 11), ("release", 6)):
            with transaction.atomic():
                sql("SET LOCAL enable_seqscan = off", "SET LOCAL plan_cache_mode = force_generic_plan")
                with connection.cursor() as cursor:
                    cursor.execute(f"EXPLAIN EXECUTE {name_of(name)}({', '.join(['NULL'] * arguments)})")
                    plans[name] = "\n".join(line for (line,) in cursor.fetchall())
                transaction.set_rollback(True)
        assert not [name for name, plan in plans.items() if "Seq Scan" in plan]
        assert ask("SHOW enable_seqscan") == ("on",)

    def test_the_age_of_a_key_costs_no_round_trip(self, tap: Tap) -> None:
        """The claim's answer brings the database's time."""
        tap.take()
        assert isinstance(request_like(late=lambda now: False), Claimed)
        assert verbs(tap.take()) == CALLED

    @pytest.mark.parametrize("chosen", ["on", "off"])
    def test_the_view_is_planned_as_its_session_says(self, chosen: str) -> None:
        """Whether a connection sends text, prepares or calls what it has prepared."""
        with tapped(OPTIONS={"options": f"-c enable_seqscan={chosen}"}):
            seen = []
            for number in range(3):
                request_like(lambda: seen.append(ask("SHOW enable_seqscan")[0]), key=str(number))
            sql(f"SET enable_seqscan = {(other := {'on': 'off', 'off': 'on'}[chosen])}")
            request_like(lambda: seen.append(ask("SHOW enable_seqscan")[0]), key="3")
            assert seen == [chosen] * 3 + [other]
            assert ask("SHOW enable_seqscan") == (other,)


class TestLost:
    @pytest.mark.parametrize("lost", ["DEALLOCATE ALL", "DISCARD ALL"])
    def test_between_two_requests_costs_none(self, tap: Tap, lost: str) -> None:
        """The claim is rolled back and sent as text, and so is everything on this connection from then on."""
        sql(lost)
        assert sent(tap, "a") == [CALLED[0], ["ROLLBACK"], *BY_TEXT]
        assert sent(tap, "b") == BY_TEXT
        assert request_like(key="a") == REPLAYED

    @pytest.mark.parametrize("lost", ["ALL", "complete"])
    def test_in_the_view_it_is_503_and_nothing_is_committed(
        self, tap: Tap, rf: RequestFactory, caplog: pytest.LogCaptureFixture, lost: str
    ) -> None:
        """The missing completion has failed with its transaction. The connection goes on by text, so the retry runs the
        same view and is served."""

        @idempotent(scope=lambda request: "s")
        def deallocates(request: HttpRequest) -> HttpResponse:
            Order.objects.create()
            if lost == "ALL" or not answers:
                sql(f"DEALLOCATE {lost if lost == 'ALL' else name_of(lost)}")
            return HttpResponse("made")

        answers: list[Any] = []
        answers.append(deallocates(rf.post("/", headers={"Idempotency-Key": "k"})))
        assert (answers[0].status_code, answers[0].headers["Retry-After"]) == (503, "1")
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
        (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "DEALLOCATE ALL" in str(logged.exc_info[1])  # type: ignore[index]
        again = [deallocates(rf.post("/", headers={"Idempotency-Key": "k"})) for _ in range(2)]
        assert [(answer.content, answer.headers["Idempotency-Replayed"]) for answer in again] == [
            (b"made", "false"),
            (b"made", "true"),
        ]
        assert Order.objects.count() == 1
        assert sent(tap, "a") == BY_TEXT

    def test_in_a_job_it_is_store_busy(self, tap: Tap) -> None:
        """Which a queue repeats. The same error of a callback after the COMMIT stays what it is."""

        def work() -> int:
            sql("DEALLOCATE ALL")
            return Order.objects.create().pk

        with pytest.raises(StoreBusy):
            run_once(work, scope="s", key="k", operation="o")
        assert not Order.objects.exists()
        assert run_once(work, scope="s", key="k", operation="o").replayed is False

        def late() -> int:
            transaction.on_commit(lambda: sql("EXECUTE missing"))
            return Order.objects.create().pk

        with pytest.raises(DatabaseError, match='"missing" does not exist'):
            run_once(late, scope="s", key="late", operation="o")
        assert Order.objects.count() == 2

    def test_two_releases_behind_one_pooler_do_not_meet_halfway(self, tap: Tap) -> None:
        """Their claims are the same and their completions are not: no claim finds a connection without its completion.

        This connection has prepared on one connection of the pooler, and is given one on which the other release has.
        """
        other = PostgreSQLStore("default")
        other._sql.complete += " AND TRUE"
        sql("DEALLOCATE ALL", *(s.preparation.decode().rstrip("; ") for s in other._statements.values()))
        assert sent(tap, "a") == [CALLED[0], ["ROLLBACK"], *BY_TEXT]
        assert request_like(key="a") == REPLAYED

    def test_names_that_another_client_has_taken_cost_no_request(self) -> None:
        """As behind a pooler, where the connection to the server is not ours alone."""
        with tapped() as tap:
            request_like(key="a")
            sql(*(s.preparation.decode().rstrip("; ") for s in store_for("default")._statements.values()))  # type: ignore[attr-defined]
            assert sent(tap, "b") == [PREPARES, ["ROLLBACK"], *BY_TEXT]
            assert sent(tap, "c") == BY_TEXT

    def test_another_type_of_a_column_costs_no_request(self, tap: Tap) -> None:
        """After a migration: the statements return one row of JSON, so PostgreSQL plans them anew without an error."""
        request_like(key="a")
        assert request_like(key="a") == REPLAYED
        with instead(
            f"ALTER TABLE {TABLE} ALTER headers TYPE varchar(900)", f"ALTER TABLE {TABLE} ALTER headers TYPE text"
        ):
            tap.take()
            assert request_like(key="a") == REPLAYED
            assert verbs(tap.take()) == [CALLED[0], ["COMMIT"]]


class TestLeaks:
    """Another schema, encoding or tool on the same connection changes nothing, and nothing leaks through it."""

    def test_another_schema_between_two_requests(self, tap: Tap) -> None:
        """Each request finds the rows of its own schema: a change of search_path plans a prepared statement anew."""
        for model in ("idempotencykey", "idempotencystep"):
            name = f"django_idempotency_{model}"
            sql(
                "CREATE SCHEMA IF NOT EXISTS tenant_b",
                f"CREATE TABLE tenant_b.{name} (LIKE public.{name} INCLUDING ALL)",
            )
        try:
            for _ in range(7):  # past the first generic plan
                request_like(key="a")
            sql("SET search_path TO tenant_b")
            assert sent(tap, "a") == CALLED
            assert request_like(key="a") == REPLAYED
            assert IdempotencyKey.objects.count() == 1
            sql("SET search_path TO public", "DELETE FROM tenant_b.django_idempotency_idempotencykey")
            assert request_like(key="a") == REPLAYED
            assert verbs(tap.take())[-2:] == [CALLED[0], ["COMMIT"]]
        finally:
            sql("SET search_path TO public", "DROP SCHEMA tenant_b CASCADE")

    @pytest.mark.parametrize("name", ["cursor", "_cursor", "_prepare_cursor", "create_cursor"])
    def test_a_tool_that_replaces_a_method_of_the_class_meets_each_statement(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        kind: Any = type(connections["default"])
        usual = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, *args, **kwargs: usual(self, *args, **kwargs))
        with tapped() as tap:
            assert sent(tap, "a") == APART

    @pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
    @pytest.mark.parametrize("when", ["before the claim", "in the view"])
    def test_another_client_encoding_commits_nothing_that_it_cannot_read(
        self, tap: Tap, encoding: str, when: str
    ) -> None:
        """The statements go by Django's cursor. A row that comes as bytes raises."""
        change = lambda: sql(f"SET client_encoding TO '{encoding}'")  # noqa: E731
        if when == "before the claim":
            change()
        assert isinstance(request_like(Order.objects.create, *([change] if when == "in the view" else [])), Claimed)
        if encoding == "LATIN1":
            assert request_like() == REPLAYED
        else:
            with pytest.raises(IdempotencyConfigurationError, match="client_encoding"):
                request_like()
        assert not connection.in_atomic_block
        sql("SET client_encoding TO 'UTF8'")
        assert (Order.objects.count(), IdempotencyKey.objects.get().status) == (1, "completed")
        assert request_like() == REPLAYED


class TestMessages:
    def test_a_large_body_goes_as_binary(self, tap: Tap) -> None:
        """With a COMMIT of its own, and not through the parser as hexadecimal text."""
        tap.take()
        assert isinstance(request_like(snapshot=LARGE), Claimed)
        assert verbs(tap.take()) == [CALLED[0], ["WITH"], ["COMMIT"]]
        assert request_like() == replace(REPLAYED, snapshot=LARGE)

    def test_a_large_body_for_a_row_that_is_gone_is_not_committed(self, tap: Tap) -> None:
        with pytest.raises(ClaimLost):
            request_like(Order.objects.create, IdempotencyKey.objects.all().delete, snapshot=LARGE)
        assert not Order.objects.exists()

    def test_gevent_is_not_blocked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """psycopg waits in the way that gevent has patched; libpq's own waiting would stop all greenlets."""
        monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda name: True))
        waited = []
        messages._in_gevent.cache_clear()
        try:
            with going("prepared"):
                execute = messages.generators.execute
                counted = SimpleNamespace(execute=lambda pgconn: waited.append(1) or execute(pgconn))
                monkeypatch.setattr(messages, "generators", counted)
                assert isinstance(request_like(), Claimed)
                assert request_like() == REPLAYED
        finally:
            messages._in_gevent.cache_clear()
        assert len(waited) == 4

    def test_a_notice_is_no_answer(self, tap: Tap) -> None:
        """The server sends it at once, and the rest of its answer when it is done."""
        sql(
            "CREATE FUNCTION notices() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE NOTICE 'claimed'; PERFORM pg_sleep(0.1); RETURN NEW; END $$",
            f"CREATE TRIGGER notices BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION notices()",
        )
        try:
            assert isinstance(request_like(), Claimed)
        finally:
            sql("DROP FUNCTION notices CASCADE")
        assert request_like() == REPLAYED

    def test_subclasses_keep_their_own_content(self, tap: Tap) -> None:
        """Of str and bytes, not what str() makes of them. A view may also set a number of HTTPStatus."""

        class Text(str):
            __slots__ = ()

            def __str__(self) -> str:
                return "other"

        class Body(bytes):
            pass

        snapshot = replace(SNAPSHOT, status_code=HTTPStatus.ACCEPTED, body=Body(b"paid"))
        assert isinstance(request_like(snapshot=snapshot, resource=(Text("order"), "7")), Claimed)
        row = IdempotencyKey.objects.get()
        assert (row.resource_type, row.status_code, bytes(row.body)) == ("order", 202, b"paid")

    def test_text_that_postgresql_cannot_hold_is_refused_and_not_cut_off(self, tap: Tap) -> None:
        with pytest.raises(DatabaseError, match="NUL"):
            request_like(resource=("order", "7\0"))
        assert not IdempotencyKey.objects.exists()

    def test_the_lock_of_text_and_of_prepared_statements_is_the_same(
        self, in_threads: Callable[..., list[Any]]
    ) -> None:
        """Connections of both kinds see each other's work."""

        def claim(number: int) -> Any:
            with transaction.atomic():
                return store_for("default").claim(a_claim())

        for first, second in (("prepared", "cursor"), ("text", "prepared")):
            with going(first), transaction.atomic():
                assert isinstance(store_for("default").claim(a_claim()), Claimed)
                with going(second):
                    assert in_threads(1, claim) == [Conflicted()]
                transaction.set_rollback(True)


# --- how much is written
