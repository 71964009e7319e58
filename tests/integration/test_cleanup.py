"""The cleanup function. What its command adds is in test_cleanup_idempotency_keys.py."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_idempotency.maintenance.cleanup import Cleanup, cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.expired import make_keys, make_leased, run


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
