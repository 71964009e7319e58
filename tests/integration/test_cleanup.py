"""The cleanup function. What its command adds is in test_cleanup_idempotency_keys.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_idempotency.maintenance.cleanup import Cleanup, cleanup_idempotency_keys, preview
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.expired import make_keys, make_leased, run
from tests.plans import analyze, empty_tables


@pytest.mark.django_db
class TestLeasedKeys:
    def test_keys_that_are_not_over_stay_however_old(self) -> None:
        """Running, stuck, in doubt or half done; the others go, with their steps."""
        make_leased("completed", "completed")
        make_leased("completed, its view has dealt with the doubt", "completed", doubt=True)
        make_leased("failed", "failed", call=False)
        make_leased("half done", "failed")
        make_leased("failed in doubt", "failed", doubt=True)
        make_leased("running", "in_progress", lapsed=False, doubt=True)
        make_leased("stuck", "in_progress", lapsed=True)
        make_leased("stuck in doubt", "in_progress", lapsed=True, doubt=True)
        assert run() == (
            "Deleted 3 expired idempotency keys. Stuck, because no worker holds them: 2. "
            "In doubt, because it is unknown what took effect: 2. "
            "Half done, because a call is finished and the operation is not: 2.\n"
        )
        left = ["half done", "failed in doubt", "running", "stuck", "stuck in doubt"]
        assert list(IdempotencyKey.objects.order_by("pk").values_list("key", flat=True)) == left
        assert IdempotencyStep.objects.count() == 2 * len(left)
        assert not IdempotencyStep.objects.exclude(key__in=IdempotencyKey.objects.all()).exists()

    def test_a_preview_counts_what_stays(self) -> None:
        """And says that nothing has been done yet."""
        make_leased("completed", "completed")
        make_leased("half done", "failed")
        make_leased("in doubt", "failed", doubt=True)
        expected = Cleanup(deleted=1, batches=0, complete=False, stuck=0, in_doubt=1, half_done=1)
        assert preview() == expected

    def test_living_keys_keep_their_steps(self) -> None:
        """A batch deletes no more than its own."""
        make_leased("young", "completed", expired=False)
        make_leased("old", "completed")
        run()
        assert set(IdempotencyStep.objects.values_list("key__key", flat=True)) == {"young"}


@pytest.mark.django_db
def test_the_function_reports_what_it_did() -> None:
    """For Celery beat and django.tasks."""
    make_keys(5)
    assert cleanup_idempotency_keys(batch_size=2) == Cleanup(deleted=5, batches=3, complete=True, stuck=0, in_doubt=0)


@pytest.mark.django_db(transaction=True)
def test_it_refuses_to_run_inside_a_transaction() -> None:
    """A batch that cannot commit is no batch."""
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        cleanup_idempotency_keys()


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_a_batch_reads_what_it_deletes_and_no_more() -> None:
    """It walks the index between two bounds. 3 million living keys cost 0.6 s in every run when it did not."""
    empty_tables()
    make_keys(3)
    make_keys(3000, age=timedelta(0))
    analyze()
    with CaptureQueriesContext(connection) as captured:
        cleanup_idempotency_keys()
    searches = [q["sql"] for q in captured.captured_queries if "SKIP LOCKED" in q["sql"] and "LIMIT 5000" in q["sql"]]
    (search,) = [sql for sql in searches if "locked_until" not in sql]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute("EXPLAIN " + search)
        plan = [line.strip() for (line,) in cursor.fetchall()]
    conditions = [line for line in plan if line.startswith("Index Cond") and "expires_at" in line]
    assert conditions
    assert all("expires_at <= " in condition for condition in conditions)
    assert not [line for line in plan if "Sort" in line or "Bitmap" in line]


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
def test_rows_that_others_hold_are_passed_over(in_threads: Any) -> None:
    """SKIP LOCKED: no cleaner waits for another transaction."""
    make_keys(4)
    with transaction.atomic():
        oldest = IdempotencyKey.objects.earliest("expires_at")
        # By its id: for an order MySQL may read the whole table, and lock every row of it.
        held = IdempotencyKey.objects.select_for_update().get(pk=oldest.pk)
        (result,) = in_threads(1, lambda _: cleanup_idempotency_keys())
    assert result.deleted == 3
    assert IdempotencyKey.objects.get() == held


@pytest.mark.django_db(transaction=True)
def test_several_at_once_delete_each_key_once(in_threads: Any) -> None:
    """Two cleaners share the work."""
    make_keys(400)
    results = in_threads(2, lambda _: cleanup_idempotency_keys(batch_size=20))
    assert sum(result.deleted for result in results) == 400
    assert not IdempotencyKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_what_needs_attention_is_never_deleted() -> None:
    """However long ago it expired. A worker with a live lease keeps its key in any case."""
    make_leased("completed", "completed")
    make_leased("completed, its view has dealt with the doubt", "completed", doubt=True)
    make_leased("failed", "failed", call=False)
    make_leased("half done", "failed")
    make_leased("in doubt", "failed", doubt=True)
    make_leased("running", "in_progress", lapsed=False, doubt=True)
    make_leased("stuck", "in_progress", lapsed=True)
    make_leased("stuck in doubt", "in_progress", lapsed=True, doubt=True)
    found = {"stuck": 2, "in_doubt": 2, "half_done": 2}
    assert cleanup_idempotency_keys() == Cleanup(deleted=3, batches=1, complete=True, **found)
    left = {"half done", "in doubt", "running", "stuck", "stuck in doubt"}
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == left
    assert set(IdempotencyStep.objects.values_list("key__key", flat=True)) == left
