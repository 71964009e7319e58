"""What `UNSETTLED_TTL` does to keys that are never settled."""

from __future__ import annotations

import logging
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_idempotency.maintenance.cleanup import Cleanup, cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.expired import make_keys, make_leased, run
from tests.plans import analyze, empty_tables

DAY = 86_400


def keys() -> set[str]:
    return set(IdempotencyKey.objects.values_list("key", flat=True))


def make_unsettled() -> None:
    """Keys that expired a day ago: settled, unsettled, and at work."""
    make_leased("completed", "completed")
    make_leased("completed, its view has dealt with the doubt", "completed", doubt=True)
    make_leased("failed", "failed", call=False)
    make_leased("half done", "failed")
    make_leased("in doubt", "failed", doubt=True)
    make_leased("running", "in_progress", lapsed=False, doubt=True)
    make_leased("stuck", "in_progress", lapsed=True)
    make_leased("stuck in doubt", "in_progress", lapsed=True, doubt=True)
    make_leased("young and in doubt", "failed", doubt=True, expired=False)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("ttl", "left"),
    [
        (None, {"half done", "in doubt", "running", "stuck", "stuck in doubt", "young and in doubt"}),
        (2 * DAY, {"half done", "in doubt", "running", "stuck", "stuck in doubt", "young and in doubt"}),
        (timedelta(hours=23), {"running", "young and in doubt"}),
        (0, {"running", "young and in doubt"}),
    ],
)
def test_they_are_kept_that_long_beyond_their_ttl(settings: Any, ttl: Any, left: set[str]) -> None:
    """For ever by default. A worker with a live lease keeps its key in any case."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": ttl}
    make_unsettled()
    given_up = 6 - len(left)
    assert cleanup_idempotency_keys() == Cleanup(
        deleted=3, batches=1 + bool(given_up), complete=True, stuck=2 if len(left) > 2 else 0,
        in_doubt=3 if len(left) > 2 else 1, half_done=2 if len(left) > 2 else 0, given_up=given_up,
    )  # fmt: skip
    assert keys() == left
    assert set(IdempotencyStep.objects.values_list("key__key", flat=True)) == left


@pytest.mark.django_db(transaction=True)
def test_each_is_logged_as_an_error(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The row is gone then: the record names the key, the operation and the calls, and no text of the client."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_leased("hidden-1", "failed", doubt=True)
    make_leased("hidden-2", "in_progress", lapsed=True)
    IdempotencyKey.objects.filter(key="hidden-1").update(resource_type="shop.order", resource_id="59")
    rows = list(IdempotencyKey.objects.order_by("pk"))
    caplog.set_level(logging.ERROR, "django_idempotency")
    cleanup_idempotency_keys()
    assert [record.getMessage() for record in caplog.records] == [
        f"Idempotency key {row.reference} of POST pay/: given_up, claimed at {row.created_at.isoformat()} and never "
        f"settled, calls in doubt: {doubts}, finished calls: {finished}."
        for row, doubts, finished in zip(rows, ("call", "none"), ("none", "call"), strict=True)
    ]
    facts = ("event", "operation", "key_reference", "database", "status", "attempt", "in_doubt", "finished")
    assert [[vars(record)[name] for name in facts] for record in caplog.records] == [
        ["given_up", "POST pay/", rows[0].reference, "default", "failed", 1, ["call"], []],
        ["given_up", "POST pay/", rows[1].reference, "default", "in_progress", 1, [], ["call"]],
    ]
    assert (vars(caplog.records[0])["resource_type"], vars(caplog.records[0])["resource_id"]) == ("shop.order", "59")
    assert not any("hidden" in str(vars(record)) for record in caplog.records)


@pytest.mark.django_db(transaction=True)
def test_a_committed_key_in_progress_without_a_lease_is_given_up_too(settings: Any) -> None:
    """No worker holds it: the transaction of an atomic view was committed in its middle."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_leased("abandoned", "in_progress")
    assert cleanup_idempotency_keys().given_up == 1
    assert keys() == set()


@pytest.mark.django_db(transaction=True)
def test_it_goes_batch_by_batch_within_the_limits(settings: Any) -> None:
    """The expired keys come first."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_keys(3)
    for number in range(5):
        make_leased(f"k{number}", "failed", doubt=True)
    seen: list[int] = []
    done = [
        cleanup_idempotency_keys(batch_size=2, max_batches=2, progress=seen.append),
        cleanup_idempotency_keys(batch_size=2, max_batches=1, progress=seen.append),
        cleanup_idempotency_keys(batch_size=2, progress=seen.append),
    ]
    assert [(c.deleted, c.given_up, c.batches, c.complete, c.in_doubt) for c in done] == [
        (3, 0, 2, False, 5),
        (0, 2, 1, False, 3),
        (0, 3, 2, True, 0),
    ]
    assert seen == [2, 3, 2, 2, 3]


@pytest.mark.django_db(transaction=True)
def test_a_stopped_run_gives_nothing_up(settings: Any) -> None:
    """A limit that ends the first half ends the run."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_keys(2)
    make_leased("in doubt", "failed", doubt=True)
    stop = Event()
    stop.set()
    assert cleanup_idempotency_keys(batch_size=1, stop=stop).given_up == 0
    assert "in doubt" in keys()


@pytest.mark.django_db(transaction=True)
def test_the_command_says_so(settings: Any) -> None:
    """Before and after."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_leased("in doubt", "failed", doubt=True)
    assert run("--dry-run") == (
        "Would delete 0 expired idempotency keys. Would give up 1 key: UNSETTLED_TTL is over. "
        "With an external call in doubt: 1.\n"
    )
    assert run() == "Deleted 0 expired idempotency keys. Gave up 1 key: UNSETTLED_TTL is over.\n"


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_on_another_database(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its keys only, with its steps."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_leased("in doubt", "failed", doubt=True, using="other")
    assert cleanup_idempotency_keys(using="default").given_up == 0
    make_leased("another one", "failed", doubt=True)
    assert cleanup_idempotency_keys(using="other").given_up == 1
    assert [vars(record)["in_doubt"] for record in caplog.records] == [["call"]]
    assert not IdempotencyKey.objects.using("other").exists()
    assert keys() == {"another one"}


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
def test_a_key_that_is_being_resolved_is_passed_over(settings: Any, in_threads: Any) -> None:
    """Its row is locked: the cleanup does not wait for it."""
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_leased("held", "failed", doubt=True)
    make_leased("free", "failed", doubt=True)
    with transaction.atomic():
        IdempotencyKey.objects.select_for_update().get(key="held")
        (result,) = in_threads(1, lambda _: cleanup_idempotency_keys())
    assert (result.given_up, keys()) == (1, {"held"})


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_it_reads_no_living_key(settings: Any) -> None:
    """By the index on `expires_at`."""
    empty_tables()
    settings.IDEMPOTENCY = {"UNSETTLED_TTL": 0}
    make_leased("in doubt", "failed", doubt=True)
    make_keys(3000, age=timedelta(0))
    IdempotencyKey.objects.filter(status="completed").update(expires_at=F("expires_at") + timedelta(days=1))
    analyze()
    with CaptureQueriesContext(connection) as queries:
        cleanup_idempotency_keys()
    asked = [query["sql"] for query in queries if "expires_at" in query["sql"] and "FOR UPDATE SKIP" in query["sql"]]
    asked += [query["sql"] for query in queries if query["sql"].startswith("SELECT (")]
    assert asked
    for sql in asked:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("EXPLAIN " + sql)
            assert "idempotency_expires_idx" in " ".join(line for (line,) in cursor.fetchall()), sql
