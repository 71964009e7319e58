"""A server with innodb_rollback_on_timeout: a lock that is not free in time costs the whole transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, transaction

from django_idempotency import OperationInProgress
from django_idempotency.exceptions import ClaimLost
from django_idempotency.models import IdempotencyKey
from tests.at_once import CALLERS, beside, once, order, references
from tests.mariadb_server import mariadb, migrated, missing
from tests.shopapp.models import Order

Threads = Callable[..., list[Any]]
pytestmark = [
    pytest.mark.only_on("mysql"),
    pytest.mark.usefixtures("on_mariadb"),
    pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: a second MariaDB needs {missing()}"),
]
LOCK_WAIT_TIMEOUT = 1205


@pytest.fixture(scope="module")
def timeouts(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The alias of a server with innodb_rollback_on_timeout."""
    with (
        django_db_blocker.unblock(),
        mariadb("--innodb-rollback-on-timeout=ON") as settings,
        migrated("timeouts", settings),
    ):
        yield "timeouts"


@pytest.fixture
def using(timeouts: str, django_db_blocker: Any) -> Iterator[str]:
    """The same, and empty afterwards."""
    with django_db_blocker.unblock():
        yield timeouts
        Order.objects.using(timeouts).all().delete()
        IdempotencyKey.objects.using(timeouts).all().delete()


@CALLERS
def test_a_conflict_that_cost_the_callers_writes_is_an_error(using: str, in_threads: Threads, caller: Any) -> None:
    """A conflict would say that nothing has happened."""

    def duplicate() -> None:
        with caller(using):
            order("before", using)
            with pytest.raises(OperationalError) as error:
                once(lambda: order("second", using), using=using)
            assert error.value.args[0] == LOCK_WAIT_TIMEOUT

    beside(in_threads, duplicate, using=using)
    assert references(using) == []


def test_without_a_caller_it_is_the_usual_conflict(using: str, in_threads: Threads) -> None:
    """Nothing but the claim was in the transaction."""

    def duplicate() -> None:
        with pytest.raises(OperationInProgress):
            once(lambda: order("second", using), using=using)

    beside(in_threads, duplicate, using=using)


def test_work_that_hides_its_own_time_out_is_not_kept(using: str, in_threads: Threads) -> None:
    """The claim is gone with the writes before it, so that the writes after it are rolled back, too."""
    stock = Order.objects.using(using).create(reference="stock")

    def impatient() -> int:
        order("before", using)
        with pytest.raises(OperationalError):
            Order.objects.using(using).select_for_update(nowait=True).get(pk=stock.pk)
        return order("after", using)

    with transaction.atomic(using):
        Order.objects.using(using).filter(pk=stock.pk).update(amount=1)

        def run(number: int) -> None:
            with pytest.raises(ClaimLost):
                once(impatient, using=using)

        in_threads(1, run)
    assert references(using) == ["stock"]
    assert not IdempotencyKey.objects.using(using).exists()
