"""The key table hash-partitioned, by docs/partitions.sql, under the contracts of the plain one.

In a database of its own, beside the tests' one: so threads and transactions are as real as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.utils import timezone

from django_idempotency.engine.protocol.outcomes import Claimed, Completed
from django_idempotency.engine.request.responses import status_url
from django_idempotency.engine.stores import Store, store_for
from django_idempotency.maintenance.cleanup import cleanup_idempotency_keys
from django_idempotency.maintenance.erasure import forget
from django_idempotency.maintenance.facts import facts_of
from django_idempotency.maintenance.resolution import release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import make_key, page_of, staff, step
from tests.claims import a_claim, expire, granted
from tests.contracts.test_leased import (
    test_a_takeover_has_one_winner,
    test_a_zombie_commits_nothing_beside_the_winner,
    test_fifty_duplicates_run_once,
)
from tests.contracts.test_races import attempt, finish, store, test_one_of_twenty_wins
from tests.contracts.test_stores import TestStoreContract
from tests.http import post_empty
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import as_if_killed, breaks
from tests.shopapp.models import Order
from tests.ways import sql

__all__ = [  # tests and their fixtures, run once more
    "TestStoreContract",
    "store",
    "test_a_takeover_has_one_winner",
    "test_a_zombie_commits_nothing_beside_the_winner",
    "test_fifty_duplicates_run_once",
    "test_one_of_twenty_wins",
]
TABLE = IdempotencyKey._meta.db_table
DOCS = Path(__file__).parents[3] / "docs"
NAME = "test_idempotency_partitioned"
KEYS = 40
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.leased_urls"),
]


@pytest.fixture(scope="module", autouse=True)
def _partitioned(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    if connection.vendor != "postgresql":
        yield  # every test here is skipped
        return
    settings, plain = connection.settings_dict, connection.settings_dict["NAME"]
    quote = connection.ops.quote_name
    with django_db_blocker.unblock():
        with connection._nodb_cursor() as cursor:  # type: ignore[attr-defined]
            connection.close()
            cursor.execute(f"DROP DATABASE IF EXISTS {quote(NAME)} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {quote(NAME)} TEMPLATE {quote(plain)}")
        settings["NAME"] = NAME
        with transaction.atomic():
            before = store_for("default").claim(a_claim(key="before"))
        with connection.cursor() as cursor:
            cursor.execute((DOCS / "partitions.sql").read_text())
            after = IdempotencyKey.objects.get()
            assert before == granted(after.pk, 1, key="before")
            IdempotencyKey.objects.all().delete()
    yield
    with django_db_blocker.unblock():
        connections.close_all()
        settings["NAME"] = plain
        with connection._nodb_cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute(f"DROP DATABASE {quote(NAME)} WITH (FORCE)")


def addresses() -> dict[str, list[str]]:
    """The keys of each ctid that occurs more than once."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ctid::text, array_agg(key) FROM {TABLE} GROUP BY ctid HAVING count(*) > 1")
        return dict(cursor.fetchall())


class TestCleanup:
    """A row's address, its ctid, is unique in one partition only."""

    @pytest.fixture(autouse=True)
    def _old(self, store: Store) -> None:
        sql(f"TRUNCATE {TABLE}")  # so that each partition begins with the same addresses
        for number in range(KEYS):
            finish(store, key=f"old{number}")
        expire()

    def test_it_deletes_no_living_key_at_the_address_of_an_expired_one(self, store: Store) -> None:
        """That would be a second charge."""
        living = {f"new{number}" for number in range(KEYS)}
        for key in living:
            finish(store, key=key)
        assert any(0 < len(living.intersection(keys)) < len(keys) for keys in addresses().values())
        assert cleanup_idempotency_keys().deleted == KEYS
        assert set(IdempotencyKey.objects.values_list("key", flat=True)) == living
        assert {type(attempt(store, key=key)) for key in living} == {Completed}

    def test_it_deletes_no_living_key_with_the_id_of_an_expired_one(self, store: Store) -> None:
        """As when a failover has set the sequence back: nothing but the sequence makes ids unique here."""
        living = finish(store, key="living")
        IdempotencyKey.objects.filter(pk=living).update(id=F("id") - 1)
        assert IdempotencyKey.objects.filter(pk=living - 1).count() == 2
        assert cleanup_idempotency_keys().deleted == KEYS
        assert isinstance(attempt(store, key="living"), Completed)

    def test_a_batch_is_as_large_as_was_asked_for(self) -> None:
        """It takes no other expired key along, from beyond those where the next batch begins."""
        sizes: list[int] = []
        cleanup_idempotency_keys(batch_size=3, progress=sizes.append)
        assert sizes == [*range(3, KEYS, 3), KEYS]

    def test_keys_that_others_hold_are_passed_over(self, store: Store, in_threads: Callable[..., list[Any]]) -> None:
        """Nobody waits for them, at whatever address they are."""
        held = next(iter(addresses().values()))[0]

        def clean(number: int) -> int:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '7s'")
            return cleanup_idempotency_keys().deleted

        with transaction.atomic():
            assert isinstance(store.claim(a_claim(key=held)), Claimed)
            assert in_threads(1, clean) == [KEYS - 1]


def test_indexes_and_room_are_those_of_the_plain_table() -> None:
    """For migrations to come, for HOT updates, and so that no query reads the whole table."""
    wanted = {
        index.name: (index.fields, f"({index.set_column} IS NOT NULL)" if hasattr(index, "set_column") else None)
        for index in IdempotencyKey._meta.indexes
    }
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, TABLE)
        cursor.execute(
            "SELECT DISTINCT reloptions FROM pg_class, pg_partition_tree(%s) WHERE oid = relid AND isleaf", [TABLE]
        )
        options = cursor.fetchall()
        cursor.execute(
            "SELECT indexrelid::regclass::text, pg_get_expr(indpred, indrelid) FROM pg_index "
            "WHERE indrelid = %s::regclass",
            [TABLE],
        )
        conditions = dict(cursor.fetchall())
    found = {name: (constraints[name]["columns"], conditions[name]) for name in wanted}
    assert found == wanted
    assert [message.msg for message in store_for("default").check() if message.id.endswith("W007")] == []
    assert constraints["idempotency_key_uniq"]["unique"] is True
    assert options == [(["fillfactor=95"],)]


def claimed(store: Store, **changes: Any) -> Claimed:
    outcome = store.claim(a_claim(**changes))
    assert isinstance(outcome, Claimed)
    return outcome


def test_a_decision_is_about_the_row_that_was_read(store: Store) -> None:
    """Another key may have the same id: a row is named by its hashes, too."""
    for key in ("one", "two"):
        with transaction.atomic():
            store.journal.fail(claimed(store, key=key, lease=60.0), a_claim(), "it broke")
    IdempotencyKey.objects.update(id=1)
    release_for_retry(IdempotencyKey.objects.get(key="two"))
    assert [key.decisions is None for key in IdempotencyKey.objects.order_by("key")] == [True, False]


def test_the_steps_of_two_callers_with_one_key_and_one_id_are_apart(store: Store) -> None:
    for scope in ("a", "b"):
        with transaction.atomic():
            store.journal.start_call(claimed(store, scope=scope, lease=60.0), scope, keyed=False)
    IdempotencyKey.objects.update(id=7)
    IdempotencyStep.objects.update(key_id=7)
    for scope in ("a", "b"):
        with transaction.atomic():
            of = granted(7, 1, scope=scope)
            assert list(store.journal.steps(of)) == [doubt.name for doubt in store.journal.doubts(of, 60)] == [scope]


class TestTwoLeasedKeysWithOneId:
    """One is done, and the worker of the other has died after its charge."""

    @pytest.fixture(autouse=True)
    def _one_id(self) -> None:
        GATEWAY.reset()
        HOOKS["between"] = breaks
        assert post_empty("living").status_code == 500
        as_if_killed()
        HOOKS.clear()
        assert post_empty("done").status_code == 201
        IdempotencyKey.objects.update(id=7)
        IdempotencyStep.objects.update(key_id=7)

    def test_each_has_its_own_steps_in_the_facts(self) -> None:
        """The admin, the commands and the decisions are made of these."""
        done, living = facts_of(IdempotencyKey.objects.order_by("key"), results=True)
        assert (done.finished, living.finished) == (["charge", "order"], ["charge"])
        assert [step.key_hash for step in living.steps] == [living.row.key_hash]

    def test_the_status_page_names_the_steps_of_its_own_key(self, client: Any) -> None:
        """The names could be those of another caller's operation."""
        living = IdempotencyKey.objects.get(key="living")
        page = client.get(status_url("default", living.key_hash, living.scope_hash, living.created_at))
        assert page.json()["steps"] == ["charge"]

    @pytest.mark.urls("tests.admin_urls")
    def test_the_admins_example_is_a_result_of_the_completed_one(self) -> None:
        """The other could be another caller's."""
        done = IdempotencyKey.objects.get(key="done")
        waiting = make_key("waiting", operation=done.operation, status="failed")
        step(waiting)
        page = page_of(staff("view_idempotencykey", "resolve_idempotencykey", "view_response"), waiting, "record")
        assert [charge in page for charge in GATEWAY.charges] == [False, True]

    def test_a_retry_goes_on_from_its_own_steps(self) -> None:
        """And changes no other row. The other key's order is not its order."""
        assert post_empty("living").json()["attempt"] == 2
        assert (GATEWAY.calls, len(GATEWAY.charges), Order.objects.count()) == (2, 2, 2)
        assert post_empty("done").headers["Idempotency-Replayed"] == "true"

    @pytest.mark.parametrize("deletion", ["cleanup", "forget"])
    def test_the_living_one_keeps_its_steps_when_the_other_goes(self, deletion: str) -> None:
        """Without them, its retry would charge again."""
        done = IdempotencyKey.objects.get(key="done")
        IdempotencyKey.objects.filter(key="done").update(expires_at=timezone.now() - timedelta(days=2))
        gone = cleanup_idempotency_keys() if deletion == "cleanup" else forget(done.scope, "done")
        assert gone.deleted == 1
        assert IdempotencyKey.objects.get().key == "living"
        assert IdempotencyStep.objects.get().name == "charge"
        assert post_empty("living").json()["attempt"] == 2
        assert (GATEWAY.calls, len(GATEWAY.charges), Order.objects.count()) == (2, 2, 2)
