"""PostgreSQL's functions themselves: what a call brings, whose rights it has, and which locks it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.stores import functions, store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import SNAPSHOT, a_claim
from tests.functions import BY_FUNCTION, WAYS, changed, going, look_now, request_like, sql
from tests.servers import eventually
from tests.sql import ask
from tests.tap import tapped, verbs

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
Threads = Callable[..., list[Any]]
TABLE = IdempotencyKey._meta.db_table


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with going("functions"):
        yield


def call(sql: str, params: list[Any]) -> dict[str, Any]:
    """The one row that the call returns."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return dict(zip((column.name for column in cursor.description), cursor.fetchone(), strict=True))


def called_claim(number: int = 0, **changes: Any) -> dict[str, Any]:
    wanted = a_claim(**changes)
    of = wanted.identity
    params = [of.key_hash, of.scope_hash, of.scope, of.operation, of.key, wanted.fingerprint, wanted.ttl]
    return call(functions.CLAIM, params)


def called_completion(fence: Sequence[int] = (1, 1, 1, 1), ttl: float | None = None) -> dict[str, Any]:
    return call(functions.COMPLETE, [*fence, 201, "[]", b"", ttl, None, None])


def clock() -> datetime:
    (now,) = ask("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


@pytest.mark.parametrize(
    ("outcome", "stored", "wanted"),
    [
        ("mismatched", {}, {"fingerprint": b"x" * 32}),
        ("other", {"scope": "of another caller"}, {}),
        ("other", {"status": "failed"}, {}),
    ],
)
def test_a_stored_response_leaves_the_database_for_a_replay_only(
    outcome: str, stored: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """A request that gets no replay does not even bring the bytes into the process."""
    request_like()
    if stored:
        IdempotencyKey.objects.update(**stored)
    answer = called_claim(**wanted)
    assert (answer["outcome"], answer["stored_headers"], answer["stored_body"]) == (outcome, None, None)


def test_times_are_those_of_the_call() -> None:
    """Not of the transaction: a view may take minutes, and a result is kept from its end on."""
    identity = a_claim().identity
    with transaction.atomic():
        begun = clock()
        row_id = called_claim()["row_id"]
        row = IdempotencyKey.objects.get()
        assert min(row.created_at, row.updated_at, row.expires_at - timedelta(seconds=60)) >= begun
        worked = clock()
        called_completion([identity.key_hash, identity.scope_hash, row_id, 1], ttl=5.0)
    row = IdempotencyKey.objects.get()
    assert row.completed_at is not None
    assert min(row.completed_at, row.updated_at, row.expires_at - timedelta(seconds=5)) >= worked


def test_a_key_that_expires_during_the_transaction_is_not_replayed() -> None:
    """A call may wait, and a caller's transaction may be old."""
    request_like()
    with transaction.atomic():
        sql(f"UPDATE {TABLE} SET expires_at = clock_timestamp()")
        assert called_claim()["outcome"] == "other"


@pytest.mark.parametrize("part", ["key_hash", "scope_hash", "id", "attempt"])
def test_a_completion_under_another_fence_fails(part: str) -> None:
    """Each part of the fence is compared, and nothing is written."""
    row_id = called_claim()["row_id"]
    identity = a_claim().identity
    fence = {"key_hash": identity.key_hash, "scope_hash": identity.scope_hash, "id": row_id, "attempt": 1}
    with pytest.raises(DatabaseError, match="claim lost in 0 rows"):
        called_completion([*{**fence, part: fence[part] + 1}.values()])
    assert IdempotencyKey.objects.get().status == "in_progress"
    called_completion([*fence.values()])
    assert IdempotencyKey.objects.get().status == "completed"


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_completion_of_a_row_that_is_not_in_progress_fails(status: str) -> None:
    """The result that is stored stays."""
    claimed = called_claim()
    IdempotencyKey.objects.update(status=status, status_code=299)
    identity = a_claim().identity
    with pytest.raises(DatabaseError, match="claim lost in 0 rows"):
        called_completion([identity.key_hash, identity.scope_hash, claimed["row_id"], 1])
    assert IdempotencyKey.objects.get().status_code == 299


def test_a_completion_without_a_resource_leaves_the_one_that_is_stored() -> None:
    """As the statement does."""
    row_id, identity = called_claim()["row_id"], a_claim().identity
    IdempotencyKey.objects.update(resource_type="order", resource_id="7")
    called_completion([identity.key_hash, identity.scope_hash, row_id, 1])
    row = IdempotencyKey.objects.get()
    assert (row.status, row.resource_type, row.resource_id) == ("completed", "order", "7")


def test_a_row_of_this_very_moment_is_read_in_the_second_round(in_threads: Threads) -> None:
    """The call that waited for the row decides by itself. No statement has to look again."""
    request_like()
    row = IdempotencyKey.objects.values().get()
    IdempotencyKey.objects.all().delete()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            IdempotencyKey.objects.create(**row)  # without the advisory lock
            running = pool.submit(in_threads, 1, called_claim)
            eventually("the call to wait", lambda: ask("SELECT 1 FROM pg_locks WHERE NOT granted"))
        (answer,) = running.result(timeout=60)
    assert (answer["outcome"], bytes(answer["stored_body"])) == ("completed", SNAPSHOT.body)


@pytest.mark.parametrize("called", [called_claim, called_completion])
def test_they_have_the_rights_of_the_role_that_calls(called: Callable[[], Any]) -> None:
    """A role that may not read the table learns and changes nothing by a function."""
    with (
        changed("CREATE ROLE stranger", back=("DROP ROLE stranger",)),
        changed("SET ROLE stranger", back=("RESET ROLE",)),
        pytest.raises(DatabaseError, match="permission denied for table"),
    ):
        called()


def test_a_later_column_may_have_the_name_of_a_parameter() -> None:
    """The migration of a later release runs before the servers of this release are gone."""
    columns = ("ttl", "new_scope", "new_fingerprint", "own_id", "new_code", "about_type")
    added = ", ".join(f"ADD COLUMN {column} integer" for column in columns)
    dropped = ", ".join(f"DROP COLUMN {column}" for column in columns)
    with changed(f"ALTER TABLE {TABLE} {added}", back=(f"ALTER TABLE {TABLE} {dropped}",)), tapped() as tap:
        assert isinstance(request_like(), Claimed)
        assert verbs(tap.take()) == [BY_FUNCTION, ["SAVEPOINT", "SELECT", "COMMIT"]]
        assert isinstance(request_like(), Completed)


@pytest.mark.parametrize(("first", "second"), [WAYS, WAYS[::-1]])
def test_functions_and_statements_take_one_lock(in_threads: Threads, first: str, second: str) -> None:
    """So old code without functions, and new code with them, see each other's work."""

    def claim(number: int) -> Any:
        sql("SET lock_timeout TO '10s'")
        look_now()
        with transaction.atomic():
            return store_for("default").claim(a_claim())

    with going(first):
        look_now()
        with transaction.atomic():
            assert isinstance(store_for("default").claim(a_claim()), Claimed)
            with going(second):
                assert in_threads(1, claim) == [Conflicted()]
