"""PostgreSQL's functions decide as the statements do, and no request is lost where they are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connection, transaction

from django_idempotency.engine.protocol.claims import ClaimRequest
from django_idempotency.engine.protocol.outcomes import Claimed, ClaimOutcome, Completed
from django_idempotency.engine.protocol.snapshots import Snapshot
from django_idempotency.engine.stores import Store, functions, store_for
from django_idempotency.models import IdempotencyKey
from tests.at_rest import OLD
from tests.claims import SNAPSHOT, a_claim
from tests.contracts.states import STATES, met
from tests.contracts.stores import TestStoreContract
from tests.functions import (
    BY_FUNCTION,
    BY_STATEMENT,
    NAMED_BACK,
    RENAMED,
    WAYS,
    changed,
    going,
    look_again,
    look_now,
    migration,
    raising,
    replacing,
    request_like,
)
from tests.shopapp.models import Order
from tests.tap import Tap, tapped, verbs

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
TEXTS = (migration.CLAIM, migration.COMPLETE)


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    """Connections are kept, and nothing is known of the functions."""
    with going("functions"):
        yield


@pytest.fixture
def tap() -> Iterator[Tap]:
    with tapped() as tap:
        yield tap


class _OwnTransactions:
    """Each claim and each completion is a transaction of its own, so that both go by the functions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        with transaction.atomic():
            return self._store.claim(wanted)

    def complete(self, claimed: Claimed, snapshot: Snapshot, **options: Any) -> None:
        with transaction.atomic():
            self._store.complete(claimed, snapshot, last=True, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class TestContract(TestStoreContract):
    """What every store promises, by the functions."""

    # They change the rounds of the statements.
    test_a_takeover_that_came_too_late_reads_again = None
    test_a_row_that_vanished_is_claimed_after_all = None

    @pytest.fixture
    def store(self, transactional_db: None) -> Any:
        return _OwnTransactions(store_for("default"))


@pytest.mark.parametrize("fingerprint", [b"f" * 32, None])
@pytest.mark.parametrize("state", STATES)
def test_functions_and_statements_decide_alike(state: str, fingerprint: bytes | None) -> None:
    """The rule stands in SQL and in `decide`: this table holds them together."""
    by_functions, by_statements = (met(state, way, fingerprint) for way in WAYS)
    assert by_functions == by_statements


@pytest.mark.parametrize("about", [None, ("order", "7")])
@pytest.mark.parametrize("ttl", [None, 5.0])
def test_functions_and_statements_complete_alike(ttl: float | None, about: tuple[str, str] | None) -> None:
    """The rows differ in their ids and times only."""

    def row(way: str) -> tuple[Any, bool]:
        IdempotencyKey.objects.all().delete()
        store = store_for("default")
        with going(way):
            look_now()
            with transaction.atomic():
                claimed = store.claim(a_claim())
                assert isinstance(claimed, Claimed)
                store.complete(claimed, SNAPSHOT, ttl=ttl, resource=about, last=True)
        values = IdempotencyKey.objects.values().get()
        values["body"] = bytes(values["body"])
        values.pop("id")
        times = [values.pop(name) for name in ("created_at", "updated_at", "completed_at", "expires_at")]
        return values, times[3] - times[2] > timedelta(seconds=30)

    assert row("functions") == row("statements")


@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_can_be_neither_inserted_nor_read_is_looked_at_again(way: str) -> None:
    """Another row was there twice, and gone twice. A third try, by a statement, claims the key."""
    gone_twice = "BEGIN IF nextval('tries') <= 2 THEN RETURN NULL; END IF; RETURN NEW; END"
    there = (
        "CREATE SEQUENCE tries",
        f"CREATE FUNCTION gone_twice() RETURNS trigger LANGUAGE plpgsql AS $$ {gone_twice} $$",
        f"CREATE TRIGGER gone_twice BEFORE INSERT ON {IdempotencyKey._meta.db_table} FOR EACH ROW "
        "EXECUTE FUNCTION gone_twice()",
    )
    with changed(*there, back=("DROP FUNCTION gone_twice CASCADE", "DROP SEQUENCE tries")), going(way):
        assert isinstance(request_like(), Claimed)


def test_an_encrypted_response_is_replayed(settings: Any, tap: Tap) -> None:
    """The row that the call returns is opened under the hashes of its key."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    assert isinstance(request_like(), Claimed)
    assert "x/y" not in str(IdempotencyKey.objects.get().headers)
    tap.take()
    assert request_like() == Completed(snapshot=SNAPSHOT, resource=("order", "7"))
    assert verbs(tap.take())[0] == BY_FUNCTION


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (migration.CLAIM, "eb7c17a3d5db8134c3225cb2f1dcd31cee54301e6dd6722d7642b41a5c8068ab"),
        (migration.COMPLETE, "9827409c3685bc63f4e50cf3252b1770c310fb24323dac8185632fffacb4287a"),
    ],
)
def test_a_version_is_never_edited(text: str, digest: str) -> None:
    """A change needs the next version: databases that have migrated keep the old text."""
    assert sha256(text.encode()).hexdigest() == digest


def test_the_engine_calls_what_the_migration_makes() -> None:
    """The signatures are the same."""
    assert migration.SIGNATURES == functions.SIGNATURES


class TestWhereTheyAreNotUsed:
    def test_where_connections_are_not_kept(self) -> None:
        """A new connection would pay for its first call. Nothing is looked up either."""
        with going("statements"), tapped() as tap:
            look_again()
            assert isinstance(request_like(), Claimed)
            assert verbs(tap.take()) == [BY_STATEMENT, ["WITH", "COMMIT"]]

    def test_in_an_outer_transaction(self, tap: Tap) -> None:
        """An error there would end the caller's transaction."""
        with transaction.atomic():
            assert isinstance(request_like(), Claimed)
        assert "idempotency_claim" not in "".join(tap.take())

    def test_for_a_completion_that_is_logged(self, tap: Tap) -> None:
        """The log was switched on after the claim, and has each statement by itself."""
        look_now()
        tap.take()

        def log() -> None:
            connection.force_debug_cursor = True

        assert isinstance(request_like(log), Claimed)
        assert verbs(tap.take()) == [BY_FUNCTION, ["UPDATE"], ["COMMIT"]]
        assert [query["sql"].split()[0] for query in connection.queries] == ["UPDATE", "COMMIT"]

    def test_for_a_claim_with_a_lease(self, tap: Tap) -> None:
        """The functions know no leases."""
        with transaction.atomic():
            claimed = store_for("default").claim(a_claim(lease=60.0))
        assert verbs(tap.take())[0] == BY_STATEMENT
        assert isinstance(claimed, Claimed)
        assert IdempotencyKey.objects.get().locked_until is not None


class TestWithoutThem:
    @pytest.mark.parametrize("number", [0, 1])
    def test_requests_go_on_by_statements(self, caplog: pytest.LogCaptureFixture, number: int) -> None:
        """As before the migration. One record tells what to do, however many requests come."""
        with changed(RENAMED[number], back=(NAMED_BACK[number],)), tapped() as tap:
            assert isinstance(request_like(), Claimed)
            assert verbs(tap.take()) == [BY_STATEMENT, ["WITH", "COMMIT"]]
            assert isinstance(request_like(), Completed)
        (record,) = caplog.records
        assert "database 'default' go on without the functions" in record.getMessage()

    @pytest.mark.parametrize("number", [0, 1])
    def test_one_that_goes_between_two_requests_costs_none(
        self, tap: Tap, caplog: pytest.LogCaptureFixture, number: int
    ) -> None:
        """Claim or completion fails inside its message, and is done by a statement."""
        with changed(RENAMED[number], back=(NAMED_BACK[number],)):
            tap.take()
            assert isinstance(request_like(Order.objects.create), Claimed)
            sent = verbs(tap.take())
        assert (
            sent
            == [
                [BY_FUNCTION, ["ROLLBACK"], BY_STATEMENT, ["INSERT"], ["WITH", "COMMIT"]],
                [BY_FUNCTION, ["INSERT"], ["SAVEPOINT", "SELECT", "COMMIT"], ["ROLLBACK"], ["WITH", "COMMIT"]],
            ][number]
        )
        assert Order.objects.count() == 1
        assert isinstance(request_like(), Completed)
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("sqlstate", ["42883", "42501", "3F000", "XX000"])
    @pytest.mark.parametrize("number", [0, 1])
    def test_each_error_of_one_that_goes_during_the_call_costs_no_request(
        self, tap: Tap, caplog: pytest.LogCaptureFixture, number: int, sqlstate: str
    ) -> None:
        """Which error comes depends on the moment: XX000 is "cache lookup failed for function"."""
        with changed(raising(TEXTS[number], sqlstate), back=(replacing(TEXTS[number]),)):
            assert isinstance(request_like(Order.objects.create), Claimed)
        assert Order.objects.count() == 1
        assert isinstance(request_like(), Completed)
        (record,) = caplog.records
        assert "take longer: the call failed. Run" in record.getMessage()

    def test_a_connection_that_breaks_meanwhile_is_djangos_error(self, tap: Tap) -> None:
        """As each error of a claim is."""
        with changed(RENAMED[0], back=(NAMED_BACK[0],)):
            tap.lose_answer(2)  # of the ROLLBACK
            with pytest.raises(OperationalError):
                request_like()

    @pytest.mark.parametrize("number", [0, 1])
    def test_any_other_error_of_a_call_is_the_projects_own(
        self, tap: Tap, caplog: pytest.LogCaptureFixture, number: int
    ) -> None:
        """Of a trigger on the key table, for one. Nothing is tried again, and the functions stay in use."""
        with changed(raising(TEXTS[number], "P0001"), back=(replacing(TEXTS[number]),)):
            tap.take()
            with pytest.raises(DatabaseError, match="the call failed"):
                request_like(Order.objects.create)
            sent = verbs(tap.take())
        completion = ["SAVEPOINT", "SELECT", "COMMIT"]
        assert sent == [[BY_FUNCTION, ["ROLLBACK"]], [BY_FUNCTION, ["INSERT"], completion, ["ROLLBACK"]]][number]
        assert (Order.objects.count(), IdempotencyKey.objects.count(), caplog.records) == (0, 0, [])
        tap.take()
        assert isinstance(request_like(), Claimed)
        assert verbs(tap.take())[0] == BY_FUNCTION

    def test_they_are_used_again_after_a_minute(self, tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
        """A migration after the deployment needs no restart."""
        with changed(RENAMED[0], back=(NAMED_BACK[0],)):
            request_like(key="a")
        tap.take()
        request_like(key="b")
        assert verbs(tap.take())[0] == BY_STATEMENT
        monkeypatch.setattr(functions, "monotonic", lambda: 1e12)
        request_like(key="c")
        assert verbs(tap.take())[:2] == [["BEGIN", "SELECT", "COMMIT"], BY_FUNCTION]

    def test_what_stays_missing_is_told_once(
        self, tap: Tap, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each look finds the same. A record for each would fill the log."""
        with changed(RENAMED[0], back=(NAMED_BACK[0],)):
            look_again()
            for number in range(3):
                monkeypatch.setattr(functions, "monotonic", lambda number=number: 1e12 + 100 * number)
                tap.take()
                request_like(key=str(number))
                assert verbs(tap.take())[:2] == [["BEGIN", "SELECT", "COMMIT"], BY_STATEMENT]
        assert len(caplog.records) == 1

    def test_a_migration_backwards_loses_nothing(self, in_threads: Callable[..., list[Any]]) -> None:
        """Requests run all the time, while the functions go and come back."""
        look_now()

        def work(number: int) -> list[Any]:
            if number == 0:
                for target in ("0005", "0006") * 2:
                    call_command("migrate", "django_idempotency", target, verbosity=0)
                return []
            return [request_like(Order.objects.create, key=f"{number}-{n}") for n in range(30) if look_again() is None]

        try:
            outcomes = [outcome for thread in in_threads(4, work) for outcome in thread]
        finally:
            call_command("migrate", "django_idempotency", verbosity=0)
        assert {type(outcome) for outcome in outcomes} == {Claimed}
        assert (Order.objects.count(), IdempotencyKey.objects.filter(status="completed").count()) == (90, 90)
